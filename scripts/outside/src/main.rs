//! How a crate outside this workspace uses the packages: each function is one example.

mod block_alone;
mod custom_linear;
mod fine_tune;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    block_alone::run()?;
    custom_linear::run()?;
    fine_tune::run()
}
