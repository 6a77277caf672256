//! Start, signals, end.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::Router;
use tokio::runtime::Builder;
use tokio::signal::unix::{signal, Signal, SignalKind};
use tokio::sync::{watch, Notify};
use tokio::task::JoinSet;

use crate::check::Rules;
use crate::counters::Counters;
use crate::decide::Decider;
use crate::limits::{check_files, read_file};
use crate::log_lines;
use crate::reload::{Folder, Reloader};
use crate::services::grpc::{self, Stay};
use crate::services::listen::{most_connections, Listener, Terms};
use crate::services::tls::Tls;
use crate::services::{http, Gate, Health};
use crate::settings::{without_meaning, Arguments, ConfigType, Instead, Settings, Stop};
use crate::xds;

/// The longest time that requests may run after a signal.
const END_WITHIN: Duration = Duration::from_secs(9);

/// The stack of a thread: expressions of limitador's files are read and evaluated recursively.
const STACK_BYTES: usize = 16 << 20;

/// The interval of pings to Redis, if health depends on it.
const ASK_REDIS_EVERY: Duration = Duration::from_secs(1);

/// Open connections of the other listeners, which operators use.
const MAX_OTHER_CONNECTIONS: usize = 100;

/// Runs the program; `words` are those of the command line.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::read(words) {
        Ok(arguments) => arguments,
        Err(Stop::Print(text)) => {
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(Stop::Mistake(line)) => return fail(&line),
    };
    let settings = arguments.settings;
    match arguments.instead {
        Some(Instead::Check { files }) => check(&files, &settings),
        None => serve(settings).map_or_else(|line| fail(&line), |()| ExitCode::SUCCESS),
    }
}

/// One line, whatever the log shows.
fn fail(line: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "tokenbucket-gate: {line}");
    ExitCode::FAILURE
}

fn check(paths: &[PathBuf], settings: &Settings) -> ExitCode {
    let limits = check_files(paths, &settings.limits_options(), settings.runtime_ignoredotfiles);
    let rules = path_of(&settings.check_file).map_or(Ok(()), |path| check_rules(&path));
    let mistakes: String =
        [limits.as_ref().err(), rules.as_ref().err()].into_iter().flatten().cloned().collect();
    match limits {
        Ok(text) if mistakes.is_empty() => {
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        _ => {
            let _ = write!(std::io::stderr(), "{mistakes}");
            ExitCode::FAILURE
        }
    }
}

fn check_rules(path: &Path) -> Result<(), String> {
    let file = read_file(path).map_err(|error| format!("{error}\n"))?;
    Rules::read(&file).map(|_| ()).map_err(|mistake| format!("{mistake}\n"))
}

fn serve(settings: Settings) -> Result<(), String> {
    log_lines::start(settings.log_level, settings.log_format);
    let names = without_meaning();
    if !names.is_empty() {
        log::warn!("set, but without meaning here: {}", names.join(", "));
    }
    // For Redis; the gRPC server names it.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let runtime = Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build();
    let runtime = runtime.map_err(|error| format!("cannot start threads: {error}"))?;
    let done = runtime.block_on(serve_until_signal(settings));
    // A thread that looks up a name may take long.
    runtime.shutdown_background();
    done
}

fn caught(kind: SignalKind) -> Result<Signal, String> {
    signal(kind).map_err(|error| format!("cannot catch signals: {error}"))
}

async fn serve_until_signal(settings: Settings) -> Result<(), String> {
    let [mut terminate, mut interrupt] = [caught(SignalKind::terminate())?, caught(SignalKind::interrupt())?];
    let hangup = caught(SignalKind::hangup())?;
    let tls = Tls::read(&settings)?.map(Arc::new);
    let (reporter, health_server) = tonic_health::server::health_reporter();
    let counters = Arc::<Counters>::default();
    let gate = Arc::new(Gate {
        decider: Decider::new(settings.server()?, settings.policy.clone(), counters.clone()),
        limits: ArcSwapOption::empty(),
        rules: ArcSwapOption::empty(),
        counters,
        health: Health::new(reporter, settings.healthy_with_at_least_one_config_loaded),
        in_flight: Arc::default(),
    });
    gate.health.publish().await;
    let is_file = settings.config_type == ConfigType::File;
    let folder = is_file.then(|| folder(&settings));
    let mut reloader = Reloader::new(folder, path_of(&settings.check_file), gate.clone(), tls.clone());
    reloader.load_rules(true).await?;
    if !reloader.load(true).await? && is_file {
        log::warn!("no limits yet: {} has no files", settings.limits_folder().display());
    } else if !is_file {
        tokio::select! {
            followed = follow_control_plane(&settings, &gate) => followed?,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
    let most = most_connections();
    let grpc = grpc_listener(&settings).await?;
    let http = http_listeners(&settings, &gate, most).await?;
    let (stop, stopped) = watch::channel(false);
    let mut services = JoinSet::new();
    let idle = settings.connection_idle_timeout;
    let stay = Stay { max_age: settings.grpc_max_connection_age, idle };
    let in_flight = gate.in_flight.clone();
    let terms = Terms { most, idle, last: settings.last_age(), in_flight, bounds_heads: false };
    let connections = grpc.connections(tls, terms.clone());
    let serving = grpc::serve(gate.clone(), health_server, connections, stay, until(stopped.clone()));
    services.spawn(async move { serving.await.map_err(|error| format!("gRPC: {error}")) });
    for (listener, most, routes) in http {
        let terms = Terms { most, last: None, bounds_heads: true, ..terms.clone() };
        let connections = listener.connections(None, terms);
        let serving = http::serve(connections, routes, gate.in_flight.clone(), idle, until(stopped.clone()));
        services.spawn(async move {
            serving.await;
            Ok(())
        });
    }
    tokio::spawn(reloader.run(hangup));
    tokio::spawn(watch_redis(gate.clone(), settings.redis_health_check_active_connection));
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        Some(ended) = services.join_next() => ended.unwrap_or_else(|error| Err(error.to_string())),
    };
    log::info!("ends");
    gate.health.set_stopping().await;
    let _ = stop.send(true);
    if tokio::time::timeout(END_WITHIN, async { while services.join_next().await.is_some() {} })
        .await
        .is_err()
    {
        log::warn!("ends with calls that still run");
    }
    ended
}

async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Starts to follow the control plane, and returns once there are limits, or at once if the settings say so.
async fn follow_control_plane(settings: &Settings, gate: &Arc<Gate>) -> Result<(), String> {
    let loaded = Arc::<Notify>::default();
    tokio::spawn(xds::Client::new(settings, gate.clone(), loaded.clone())?.run());
    if !settings.force_start_without_initial_config {
        loaded.notified().await;
    }
    Ok(())
}

fn folder(settings: &Settings) -> Folder {
    let below = |path: &str| Path::new(path).components().count();
    Folder {
        path: settings.limits_folder(),
        depth: below(&settings.runtime_subdirectory).saturating_add(below(&settings.runtime_appdirectory)),
        ignore_dot_files: settings.runtime_ignoredotfiles,
        options: settings.limits_options(),
        limitador_file: path_of(&settings.limitador_limits_file),
    }
}

/// Returns a path, unless the setting is empty.
fn path_of(text: &str) -> Option<PathBuf> {
    Some(text).filter(|text| !text.is_empty()).map(PathBuf::from)
}

/// Keeps the health: healthy once Redis has answered, and, if configured, only while it answers.
async fn watch_redis(gate: Arc<Gate>, for_ever: bool) {
    gate.decider.warm_up().await;
    log::info!("Redis answers");
    gate.health.set_redis(true).await;
    if !for_ever {
        return;
    }
    loop {
        tokio::time::sleep(ASK_REDIS_EVERY).await;
        let answers = tokio::time::timeout(ASK_REDIS_EVERY, gate.decider.warm_up()).await.is_ok();
        gate.health.set_redis(answers).await;
    }
}

async fn grpc_listener(settings: &Settings) -> Result<Listener, String> {
    let listener = match settings.grpc_uds.as_str() {
        "" => Listener::tcp(&settings.grpc_host, settings.grpc_port, "GRPC_PORT").await?,
        path => Listener::unix(path, "GRPC_UDS").await?,
    };
    Ok(listener.announced("gRPC"))
}

/// Returns the listeners for HTTP, with the most connections of each and its routes.
async fn http_listeners(
    settings: &Settings,
    gate: &Arc<Gate>,
    most: usize,
) -> Result<Vec<(Listener, usize, Router)>, String> {
    let http = Listener::tcp(&settings.host, settings.port, "PORT").await?.announced("HTTP");
    let debug = Listener::tcp(&settings.debug_host, settings.debug_port, "DEBUG_PORT").await?;
    let mut listeners = vec![
        (http, most, http::main_routes(gate.clone())),
        (debug.announced("debug"), MAX_OTHER_CONNECTIONS, http::debug_routes(gate.clone())),
    ];
    if settings.use_prometheus {
        let (host, port) = settings.prometheus_address()?;
        let prometheus = Listener::tcp(&host, port, "PROMETHEUS_ADDR").await?.announced("Prometheus");
        let routes = http::prometheus_routes(gate.clone(), &settings.prometheus_path);
        listeners.push((prometheus, MAX_OTHER_CONNECTIONS, routes));
    }
    Ok(listeners)
}
