//! The worker: see the library's documentation for what it reads and writes.

fn main() {
    compile_worker::serve()
}
