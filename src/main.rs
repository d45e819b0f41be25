//! The `drawbridge` program: allocator, crypto provider, exit code.

use std::process::ExitCode;

#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // TLS and signatures go through one library; a second installation changes nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    drawbridge::cli::run(std::env::args_os())
}
