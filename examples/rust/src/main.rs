//! An axum app whose rate limits are decided by the tokenbucket module in Redis or Valkey.

mod app;
mod settings;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use app::app;
use settings::Settings;
use tokenbucket_client::{Error, Limiter};
use tokio::net::TcpListener;
use tokio::signal::unix::{signal, SignalKind};

/// How long a start waits for Redis, before it goes on without.
const REDIS_AT_START_WITHIN: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    log::set_logger(&StandardError).expect("no other logger is set");
    log::set_max_level(log::LevelFilter::Info);
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    check_limits(&settings).await?;
    let server = settings.servers.connect(settings.redis_timeout)?;
    // Connects, so that the first request finds a connection.
    let _ =
        Limiter::with_options(&server, settings.ip_limit.clone(), settings.options()).peek("start", 1).await;

    let listener =
        TcpListener::bind(settings.listen).await.map_err(|error| format!("{}: {error}", settings.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!("listening on http://{address}");
    let app = app(&server, &settings).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).with_graceful_shutdown(ended()).await.map_err(|error| error.to_string())
}

/// The server knows how large a limit may be.
async fn check_limits(settings: &Settings) -> Result<(), String> {
    let server = settings.servers.connect(REDIS_AT_START_WITHIN.max(settings.redis_timeout))?;
    for (name, limit) in settings.limits() {
        let limiter = Limiter::with_options(&server, limit.clone(), settings.options());
        match limiter.peek("start", 1).await {
            Err(error @ Error::ModuleMissing { .. }) => return Err(error.to_string()),
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(decision) if decision.degraded => break, // starts all the same; it was logged
            Ok(_) => {}
        }
    }
    Ok(())
}

async fn ended() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler can be set");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// What this app has to say; put `tracing` or `env_logger` in its place.
struct StandardError;

impl log::Log for StandardError {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.target().starts_with("tokenbucket")
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            eprintln!("{}: {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}
