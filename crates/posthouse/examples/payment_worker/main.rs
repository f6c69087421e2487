//! A payment worker with the library: `payment_worker URL NAME RUN [once]`. See `examples/payment_dispatch`.

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

mod worker;

#[tokio::main]
async fn main() -> Result<(), worker::Failure> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [url, name, run, options @ ..] = &args[..] else {
        return Err("usage: payment_worker URL NAME RUN [once]".into());
    };
    let worker = worker::Worker::connect(url, name, run).await?;
    let once = options.iter().any(|o| o == "once");
    worker.work(once, |line| println!("{line}")).await
}
