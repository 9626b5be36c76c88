//! `__compile`: the child in which this program compiles one component. Not for people.

use portcullis::adapters::wasm::compile::{Bounds, Order, child};

use super::exit::{Exit, Trouble};

/// Compiles from stdin to stdout and ends the process.
pub(crate) fn run(engine: &str, class: &str, most: Bounds) -> Result<Exit, Trouble> {
    let order = Order::parse(engine, class, most);
    let order = order.ok_or_else(|| Trouble::new(Exit::Usage, "this is no order for a compiling child"))?;
    let code = child(order, std::io::stdin().lock(), std::io::stdout().lock());
    // The code says whose the output is: compiled code, or a reason.
    std::process::exit(code.into())
}
