//! Sentinels, which know where the master is.
//!
//! The driver's own `SentinelClient` takes no TLS settings but certificates, and waits for a silent sentinel.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use tokio::task::JoinSet;

use crate::transport::address::{at, timed_out, unfinished, without_password};
use crate::transport::background::timeout;

/// Sentinels that take longer are passed over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// How often they are asked while calls run: a master that is replaced goes on to serve for seconds.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

pub(crate) struct Sentinels {
    pub(crate) master: String,
    /// How the master is connected to, wherever it is.
    like: ConnectionInfo,
    sentinels: Vec<Client>,
    /// When they may be asked again whether the master is another.
    pub(super) next_look_us: AtomicU64,
}

impl Sentinels {
    /// `master` has the name of the master as its host.
    pub(crate) fn new(
        master: ConnectionInfo,
        sentinels: impl IntoIterator<Item = RedisResult<ConnectionInfo>>,
    ) -> RedisResult<Self> {
        let name = match master.addr() {
            ConnectionAddr::Tcp(name, _) | ConnectionAddr::TcpTls { host: name, .. } => name.clone(),
            _ => return Err(misconfigured("the URL of the master needs its name as the host")),
        };
        let sentinels: Vec<Client> =
            sentinels.into_iter().map(|info| Client::open(info?)).collect::<RedisResult<_>>()?;
        if sentinels.is_empty() {
            return Err(misconfigured("sentinels need a URL"));
        }
        Ok(Self { master: name, like: master, sentinels, next_look_us: AtomicU64::new(0) })
    }

    /// The master, as the sentinel says that is the first to answer.
    pub(crate) async fn find(&self) -> RedisResult<Client> {
        let mut failure = timed_out();
        let mut asking: JoinSet<_> =
            self.sentinels.iter().map(|sentinel| ask(sentinel.clone(), self.master.clone())).collect();
        while let Some(named) = asking.join_next().await {
            match named.unwrap_or_else(|error| Err(unfinished(error))) {
                Ok((host, port)) => return Client::open(at(&self.like, host, port)),
                Err(error) if !error.is_timeout() => failure = error,
                Err(_) => {}
            }
        }
        Err(failure)
    }
}

async fn ask(sentinel: Client, master: String) -> RedisResult<(String, u16)> {
    let asking = async {
        let mut connection = sentinel.get_multiplexed_async_connection().await.map_err(without_password)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let address: Option<(String, u16)> = question.query_async(&mut connection).await?;
        address.ok_or_else(|| misconfigured("no sentinel knows a master of this name"))
    };
    timeout(ANSWER_WITHIN, asking).await.unwrap_or_else(|| Err(timed_out()))
}

fn misconfigured(problem: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, problem).into()
}
