"""Checks `cargo metadata` (on stdin) against a `deny.toml`: licences, banned crates, sources.

`cargo deny check licenses bans sources` reads the same file and says more; this needs nothing but Python.
"""

import json
import re
import sys

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

INDEX = "registry+https://github.com/rust-lang/crates.io-index"


def permitted(expression, allowed):
    """Whether an SPDX expression can be met with the allowed licences."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def peek():
        return tokens[at] if at < len(tokens) else None

    def take():
        nonlocal at
        at += 1
        return tokens[at - 1]

    def either():
        met = both()
        while peek() == "OR":
            take()
            other = both()
            met = met or other
        return met

    def both():
        met = one()
        while peek() == "AND":
            take()
            other = one()
            met = met and other
        return met

    def one():
        if peek() == "(":
            take()
            met = either()
            take()
            return met
        name = take()
        if peek() == "WITH":
            take()
            name = f"{name} WITH {take()}"
        return name in allowed

    return either()


def main():
    with open(sys.argv[1], "rb") as file:
        rules = tomllib.load(file)
    allowed = set(rules["licenses"]["allow"])
    banned = {rule["crate"] for rule in rules["bans"]["deny"]}
    faults = []
    packages = json.load(sys.stdin)["packages"]
    for package in packages:
        who = f"{package['name']} {package['version']}"
        if package["name"] in banned:
            faults.append(f"{who}: banned")
        if package["source"] not in (None, INDEX):
            faults.append(f"{who}: comes from {package['source']}")
        licence = package["license"]
        if not licence:
            faults.append(f"{who}: names no licence")
        elif not permitted(licence, allowed):
            faults.append(f"{who}: `{licence}` is not allowed")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(packages)} packages, {len(faults)} faults")
    return 1 if faults else 0


sys.exit(main())
