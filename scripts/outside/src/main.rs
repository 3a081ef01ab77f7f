//! How a crate outside this workspace uses the packages: each function is one example.

mod block_alone;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    block_alone::run()?;
    Ok(())
}
