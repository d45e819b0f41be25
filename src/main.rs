//! The `drawbridge` program: allocator, crypto provider, exit code.

use std::process::ExitCode;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // TLS and signatures go through one library; a second installation changes nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    drawbridge::cli::run(std::env::args_os())
}
