//! Connections to one server: one for each runtime, which all its calls share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
};
use tokio::runtime::{Handle, Id};
use tokio::sync::{watch, Semaphore, SemaphorePermit};

use crate::address::{timed_out, without_password};
use crate::locked::locked;
use crate::sentinel::Sentinels;

/// A try to connect that takes longer has failed.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const MOST_IN_A_QUEUE: usize = 100_000;
/// More connections than these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
const MOST_CONNECTING: usize = 32;
/// More runtimes at a time have to connect again.
const MOST_RUNTIMES: usize = 16;

pub(crate) struct Link {
    target: Target,
    /// A connection ends with the runtime that drives it, and another runtime cannot drive it.
    of_runtimes: Mutex<Vec<(Id, State)>>,
    connections: AtomicU64,
    next_number: AtomicU64,
    /// Those of calls that have waited, the last used at the end.
    idle_waiters: Mutex<Vec<(Id, Waiter)>>,
    /// Of those that connect at a time: all at once would take longer than each may.
    connecting: Semaphore,
}

/// What is connected to.
enum Target {
    Server(Client),
    /// Asked each time: the master may be another.
    MasterOf(Sentinels),
}

/// A connection for one call at a time, which may wait in the server.
pub(crate) struct Waiter {
    pub(crate) live: Live,
    /// The server's id of it, if this user may know it.
    pub(crate) id: Option<i64>,
}

enum State {
    Connecting(Outcome),
    Live(Live),
}

/// None while connecting.
pub(crate) type Outcome = watch::Receiver<Option<RedisResult<Connection>>>;

/// A connection, and whether it was closed.
pub(crate) struct Live {
    pub(crate) connection: Connection,
    is_closed: Arc<AtomicBool>,
    ticker: Ticker,
}

/// Fires before the timers of calls, as long as calls come. A timer that is nearer than all others interrupts the runtime's
/// wait for events by a write to itself: without this, each call that finds the runtime idle would cost that.
#[derive(Default)]
struct Ticker {
    is_running: bool,
    /// Whether a call came since it fired.
    is_needed: bool,
}

/// Sends commands. Each call clones it, so it holds no more than that needs: threads share the counts.
#[derive(Clone)]
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    /// No other connection of the link has it.
    number: u64,
}

impl Link {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        Ok(Self::to(Target::Server(Client::open(info)?)))
    }

    pub(crate) fn to_master_of(sentinels: Sentinels) -> Self {
        Self::to(Target::MasterOf(sentinels))
    }

    fn to(target: Target) -> Self {
        Self {
            target,
            of_runtimes: Mutex::default(),
            connections: AtomicU64::new(0),
            next_number: AtomicU64::new(0),
            idle_waiters: Mutex::default(),
            connecting: Semaphore::new(MOST_CONNECTING),
        }
    }

    /// A number that changes with each connection that is made or lost: the next server may be another.
    pub(crate) fn connections(&self) -> u64 {
        let is_live = Handle::try_current().is_ok() && self.live().is_some();
        2 * self.connections.load(Ordering::Acquire) + u64::from(is_live)
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(Id, State)>> {
        self.of_runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of this runtime.
    pub(crate) fn live(&self) -> Option<Connection> {
        let id = Handle::current().id();
        live_of(&mut self.locked(), id).map(|live| live.connection.clone())
    }

    /// The same for a call with such a timeout.
    pub(crate) fn live_for_call(self: &Arc<Self>, timeout: Duration) -> Option<Connection> {
        let id = Handle::current().id();
        let mut of_runtimes = self.locked();
        let live = live_of(&mut of_runtimes, id)?;
        live.ticker.is_needed = true;
        let connection = live.connection.clone();
        if !std::mem::replace(&mut live.ticker.is_running, true) {
            drop(of_runtimes);
            tokio::spawn(tick(Arc::downgrade(self), connection.number, timeout / 2));
        }
        Some(connection)
    }

    /// Whether the ticker of this connection goes on.
    fn still_ticks(&self, number: u64) -> bool {
        self.locked().iter_mut().any(|(_, state)| match state {
            State::Live(live) if live.connection.number == number => {
                live.ticker.is_running = std::mem::take(&mut live.ticker.is_needed);
                live.ticker.is_running
            }
            _ => false,
        })
    }

    /// Connects, unless somebody does already. Goes on in the background when nobody waits for it any longer, and then
    /// calls `done`.
    pub(crate) fn connect(
        self: &Arc<Self>,
        done: impl FnOnce(&RedisResult<Connection>) + Send + 'static,
    ) -> Outcome {
        let id = Handle::current().id();
        let mut of_runtimes = self.locked();
        for (other, state) in of_runtimes.iter() {
            match state {
                State::Connecting(outcome) if *other == id => return outcome.clone(),
                State::Live(live) if *other == id && !live.is_closed() => {
                    return watch::channel(Some(Ok(live.connection.clone()))).1;
                }
                _ => {}
            }
        }
        let (sender, outcome) = watch::channel(None);
        set(&mut of_runtimes, id, Some(State::Connecting(outcome.clone())));
        let link = self.clone();
        tokio::spawn(async move {
            let result = link.make().await;
            link.connections.fetch_add(u64::from(result.is_ok()), Ordering::AcqRel);
            let connection = result.as_ref().map(|live| live.connection.clone()).map_err(RedisError::clone);
            set(&mut link.locked(), id, result.ok().map(State::Live));
            done(&connection);
            let _ = sender.send(Some(connection));
        });
        outcome
    }

    async fn make(&self) -> RedisResult<Live> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            // Silence is judged for all calls together.
            .set_response_timeout(None)
            // Callers in a queue would wait for each other's turns to run.
            .set_pipeline_buffer_size(MOST_IN_A_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let client = match &self.target {
            Target::Server(client) => client.clone(),
            Target::MasterOf(sentinels) => sentinels.find().await?,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        // The library's own limit does not cover a server that accepts and then says nothing.
        let multiplexed = tokio::time::timeout(CONNECT_WITHIN, connecting).await.map_err(|_| timed_out())?;
        let multiplexed = multiplexed.map_err(without_password)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Ok(Live { connection: Connection { multiplexed, number }, is_closed, ticker: Ticker::default() })
    }

    /// A connection of this runtime that an earlier call has waited on.
    pub(crate) fn idle_waiter(&self) -> Option<Waiter> {
        let id = Handle::current().id();
        let mut idle = locked(&self.idle_waiters);
        idle.retain(|(_, waiter)| !waiter.live.is_closed());
        let place = idle.iter().rposition(|(other, _)| *other == id)?;
        Some(idle.remove(place).1)
    }

    pub(crate) async fn turn_to_connect(&self) -> Option<SemaphorePermit<'_>> {
        self.connecting.acquire().await.ok()
    }

    pub(crate) async fn make_waiter(&self) -> RedisResult<Waiter> {
        let mut live = self.make().await?;
        let ask = redis::cmd("CLIENT").arg("ID").take();
        let id = tokio::time::timeout(CONNECT_WITHIN, live.connection.send(&[ask]))
            .await
            .map_err(|_| timed_out())??;
        Ok(Waiter { live, id: id.first().and_then(|id| i64::from_redis_value_ref(id).ok()) })
    }

    pub(crate) fn keep(&self, waiter: Waiter) {
        let mut idle = locked(&self.idle_waiters);
        idle.push((Handle::current().id(), waiter));
        let too_many = idle.len().saturating_sub(MOST_IDLE_WAITERS);
        idle.drain(..too_many);
    }

    /// The server has gone, or another is the master now.
    pub(crate) fn forget_waiters(&self) {
        locked(&self.idle_waiters).clear();
    }

    /// Connects again for the next call.
    pub(crate) fn forget(&self, gone: u64) {
        self.locked()
            .retain(|(_, state)| !matches!(state, State::Live(live) if live.connection.number == gone));
    }
}

async fn tick(link: Weak<Link>, connection: u64, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if !link.upgrade().is_some_and(|link| link.still_ticks(connection)) {
            return;
        }
    }
}

fn live_of(of_runtimes: &mut [(Id, State)], id: Id) -> Option<&mut Live> {
    of_runtimes.iter_mut().find_map(|(other, state)| match state {
        State::Live(live) if *other == id && !live.is_closed() => Some(live),
        _ => None,
    })
}

fn set(of_runtimes: &mut Vec<(Id, State)>, id: Id, state: Option<State>) {
    of_runtimes
        .retain(|(other, state)| *other != id && !matches!(state, State::Live(live) if live.is_closed()));
    of_runtimes.extend(state.map(|state| (id, state)));
    let too_many = of_runtimes.len().saturating_sub(MOST_RUNTIMES);
    of_runtimes.drain(..too_many);
}

impl Live {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl Connection {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// An error of the server comes as a value.
    pub(crate) async fn send_one(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.multiplexed.send_packed_command(command).await
    }

    /// Sends them in one write. Errors of the server come as values.
    pub(crate) async fn send(&mut self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        if let [command] = commands {
            return self.send_one(command).await.map(|value| vec![value]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        self.multiplexed.send_packed_commands(&pipeline, 0, commands.len()).await
    }
}

/// The same with RESP3, by which a closed connection is noticed at once.
pub(crate) fn settings(url: impl IntoConnectionInfo) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // A server that vanished without a word must not hold the connection for the quarter of an hour that TCP would
    // go on trying.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(2));
    settings
}

pub(crate) fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}
