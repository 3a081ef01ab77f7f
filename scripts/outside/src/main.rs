//! What a crate outside this workspace does with the packages: each function is one use of them.

mod block_alone;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result {
    block_alone::run()?;
    Ok(())
}
