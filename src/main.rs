//! The `drawbridge` program: allocator, crypto provider, exit code.

use std::process::ExitCode;

use drawbridge::upstream::stdio;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything reads an option or could start a thread: these become other processes.
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(|first| first.to_str()) {
        Some(stdio::EXEC_CHILD) => return stdio::exec_child(args),
        Some(stdio::GUARDIAN) => return stdio::guardian(),
        _ => {}
    }
    // TLS and signatures go through one library; a second installation changes nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    drawbridge::cli::run(std::env::args_os())
}
