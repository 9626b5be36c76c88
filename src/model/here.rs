//! Which addresses are this machine.
//!
//! Two rules, since a doubt counts against whoever asks: [`is_loopback`] says that what is sent stays on this machine,
//! [`may_be_here`] that it cannot be ruled out to reach this machine. Neither looks a name up.

use std::net::{Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Whether an address is this machine for certain: `localhost`, 127.0.0.0/8 or `[::1]`.
///
/// No other name counts, not even `a.localhost`: a resolver may ask the network for it, and whoever answers would get what
/// is sent.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether what is sent to this address can be read by nobody on its way: https, or http that stays on this machine.
#[must_use]
pub fn is_private(url: &Url) -> bool {
    match url.scheme() {
        "https" => url.host().is_some(),
        "http" => is_loopback(url),
        _ => false,
    }
}

/// Whether an address may lead to this machine, however it is spelled: names below `localhost`, which browsers take for it,
/// the unspecified addresses, which systems connect to it, and IPv4 addresses in the clothes of IPv6.
#[must_use]
pub fn may_be_here(url: &Url) -> bool {
    let v4 = |address: Ipv4Addr| address.is_loopback() || address.octets()[0] == 0;
    // `[::]` and `[::1]` are 0.0.0.0 and 0.0.0.1 by this.
    let v6 = |address: Ipv6Addr| address.to_ipv4().is_some_and(v4);
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => v4(address),
        Some(Host::Ipv6(address)) => v6(address),
        // Without a host there is nowhere else.
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn only_what_no_resolver_decides_is_this_machine_for_certain() {
        for here in
            ["http://localhost/", "http://LOCALHOST:1/", "http://127.0.0.1/", "http://127.9.9.9/", "http://[::1]/"]
        {
            assert!(is_loopback(&url(here)) && is_private(&url(here)) && may_be_here(&url(here)), "{here}");
        }
        for doubtful in [
            "http://a.localhost/",
            "http://localhost./",
            "http://a.LOCALHOST./",
            "http://0.0.0.0/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert!(!is_loopback(&url(doubtful)) && !is_private(&url(doubtful)), "{doubtful}");
            assert!(may_be_here(&url(doubtful)), "{doubtful}");
        }
        for elsewhere in
            ["http://localhost.example/", "http://127.0.0.1.example/", "http://192.0.2.1/", "http://[2001:db8::1]/"]
        {
            assert!(!is_loopback(&url(elsewhere)) && !may_be_here(&url(elsewhere)), "{elsewhere}");
        }
    }

    #[test]
    fn https_is_private_wherever_it_leads() {
        assert!(is_private(&url("https://a.example/")) && !is_private(&url("http://a.example/")));
        assert!(!is_private(&url("ftp://localhost/")));
    }
}
