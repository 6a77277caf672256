//! Sentinels, which know where the master is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
};

use crate::transport::address::{at, timed_out, without_password};

/// A sentinel that takes longer is passed over.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

pub(crate) struct Sentinels {
    pub(crate) master: String,
    /// How the master is connected to, wherever it is.
    like: ConnectionInfo,
    sentinels: Vec<Client>,
    /// The one that answered last.
    first: AtomicUsize,
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
        Ok(Self { master: name, like: master, sentinels, first: AtomicUsize::new(0) })
    }

    /// The master, as the first sentinel says that knows it.
    pub(crate) async fn find(&self) -> RedisResult<Client> {
        let first = self.first.load(Ordering::Relaxed);
        let mut failure = None;
        for place in (first..first + self.sentinels.len()).map(|place| place % self.sentinels.len()) {
            let asking = self.ask(&self.sentinels[place]);
            match tokio::time::timeout(ANSWERS_WITHIN, asking).await.unwrap_or_else(|_| Err(timed_out())) {
                Ok((host, port)) => {
                    self.first.store(place, Ordering::Relaxed);
                    return Client::open(at(&self.like, host, port));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(timed_out))
    }

    async fn ask(&self, sentinel: &Client) -> RedisResult<(String, u16)> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWERS_WITHIN));
        let connecting = sentinel.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connecting.map_err(without_password)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let address: Option<(String, u16)> = question.query_async(&mut connection).await?;
        address.ok_or_else(|| misconfigured("no sentinel knows a master of this name"))
    }
}

fn misconfigured(problem: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, problem).into()
}
