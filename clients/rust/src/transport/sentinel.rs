//! Sentinels, which know where the master is.
//!
//! The driver's own `SentinelClient` takes no TLS settings but certificates, and waits for a silent sentinel.

use std::sync::atomic::AtomicU64;
use std::sync::Mutex;
use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use tokio::task::JoinSet;

use crate::transport::address::{at, timed_out, unfinished, without_password};
use crate::transport::background::timeout;
use crate::transport::locked::locked;

/// Sentinels that take longer are passed over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// How often they are asked while calls run: a master that is replaced goes on to serve for seconds.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

pub(crate) struct Sentinels {
    pub(crate) master: String,
    /// How the master is connected to, wherever it is.
    like: ConnectionInfo,
    sentinels: Vec<Client>,
    named: Mutex<Option<Named>>,
    /// When they may be asked again whether the master is another.
    pub(super) next_look_us: AtomicU64,
}

/// Which sentinel named the master the last time.
#[derive(Clone, Copy)]
struct Named {
    by: usize,
    /// Set once that master was away or a replica: the sentinel may not have learned of its successor.
    is_doubted: bool,
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
        let (named, next_look_us) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { master: name, like: master, sentinels, named, next_look_us })
    }

    /// Returns the master, as the sentinel says that named it the last time. If that one does not answer, the first of the others
    /// to do so: sentinels that disagree would move all calls at each look.
    pub(crate) async fn find(&self) -> RedisResult<Client> {
        let last = *locked(&self.named);
        let is_first = |at: &usize| last.is_none_or(|last| (last.by == *at) != last.is_doubted);
        let (first, others): (Vec<_>, Vec<_>) = (0..self.sentinels.len()).partition(is_first);
        let mut failure = timed_out();
        for asked in [first, others] {
            let ask = |by: usize| ask(by, self.sentinels[by].clone(), self.master.clone());
            let mut asking: JoinSet<_> = asked.into_iter().map(ask).collect();
            while let Some(named) = asking.join_next().await {
                match named.unwrap_or_else(|error| Err(unfinished(error))) {
                    Ok((by, host, port)) => {
                        *locked(&self.named) = Some(Named { by, is_doubted: false });
                        return Client::open(at(&self.like, host, port));
                    }
                    Err(error) if !error.is_timeout() => failure = error,
                    Err(_) => {}
                }
            }
        }
        Err(failure)
    }

    /// Asks the others first the next time.
    pub(super) fn doubt(&self) {
        if let Some(last) = &mut *locked(&self.named) {
            last.is_doubted = true;
        }
    }
}

async fn ask(by: usize, sentinel: Client, master: String) -> RedisResult<(usize, String, u16)> {
    let asking = async {
        let mut connection = sentinel.get_multiplexed_async_connection().await.map_err(without_password)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let address: Option<(String, u16)> = question.query_async(&mut connection).await?;
        let (host, port) = address.ok_or_else(|| misconfigured("no sentinel knows a master of this name"))?;
        Ok((by, host, port))
    };
    timeout(ANSWER_WITHIN, asking).await.unwrap_or_else(|| Err(timed_out()))
}

fn misconfigured(problem: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, problem).into()
}
