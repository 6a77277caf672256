//! Sentinels, which know where the master is.

use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

use crate::transport::address::{at, timed_out, without_password};
use crate::transport::background::timeout;

/// A sentinel that takes longer is passed over.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

pub(crate) struct Sentinels {
    pub(crate) master: String,
    /// How the master is connected to, wherever it is.
    like: ConnectionInfo,
    sentinels: Vec<Client>,
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
        Ok(Self { master: name, like: master, sentinels })
    }

    /// The master, as the first sentinel says that knows it.
    pub(crate) async fn find(&self) -> RedisResult<Client> {
        let mut failure = timed_out();
        for sentinel in &self.sentinels {
            match timeout(ANSWERS_WITHIN, self.ask(sentinel)).await.unwrap_or_else(|| Err(timed_out())) {
                Ok((host, port)) => return Client::open(at(&self.like, host, port)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn ask(&self, sentinel: &Client) -> RedisResult<(String, u16)> {
        let connecting = sentinel.get_multiplexed_async_connection().await;
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
