//! Several limits of one name, taken from together.

use std::sync::Arc;
use std::time::Duration;

use crate::api::hold::Hold;
use crate::api::limiter::Limiter;
use crate::api::options::Options;
use crate::api::server::Server;
use crate::values::decision::JointDecision;
use crate::values::error::Error;
use crate::values::limit::Limit;
use crate::values::request::{Amount, Part};

/// Several named limits. A call takes all of its costs, or none.
///
/// The buckets of a name share a hash tag, so that they are on one node of a cluster. Any name will do.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{fake::Fake, JointLimiter, Limit};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = [("requests", Limit::new(60, "60/m")?), ("tokens", Limit::new(90_000, "90000/m")?)];
/// let limiter = JointLimiter::new(&Fake::new().server(), limits);
/// let decision = limiter.take_all("alice", &[("requests", 1), ("tokens", 1200)]).await?;
/// assert_eq!([decision.each[0].remaining, decision.each[1].remaining], [59, 88_800]);
/// let hold = limiter.hold("alice", &[("requests", 1), ("tokens", 500)], Duration::from_secs(30)).await?;
/// hold.set_used_of(1, 120)?; // of tokens
/// assert_eq!(hold.settle().await?.each[1].remaining, 88_680);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JointLimiter {
    limiter: Limiter,
    limits: Arc<[(String, Limit)]>,
}

impl JointLimiter {
    /// Makes a limiter whose options have their defaults. Without any limit, each call is an error.
    pub fn new<S: Into<String>>(server: &Server, limits: impl IntoIterator<Item = (S, Limit)>) -> Self {
        Self::with_options(server, limits, Options::new())
    }

    /// Makes a limiter with these options; those about single takes change nothing here.
    pub fn with_options<S: Into<String>>(
        server: &Server,
        limits: impl IntoIterator<Item = (S, Limit)>,
        options: Options,
    ) -> Self {
        let limits: Arc<[_]> = limits.into_iter().map(|(which, limit)| (which.into(), limit)).collect();
        // Each part has a limit of its own.
        let none = Limit::new(0, 0).expect("a pool of nothing");
        Self { limiter: Limiter::with_options(server, none, options.remember_denials(0)), limits }
    }

    /// Returns this limiter, whose calls now wait for their turn: see [`Limiter::with_max_wait`].
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { limiter: self.limiter.with_max_wait(max_wait), limits: self.limits.clone() }
    }

    /// Takes the cost of each limit that is named, or nothing: see [`JointLimiter`].
    pub async fn take_all<A: Into<Amount> + Copy>(
        &self,
        name: &str,
        costs: &[(&str, A)],
    ) -> Result<JointDecision, Error> {
        self.limiter.take_all(&self.parts(name, costs)?).await
    }

    /// Holds the amount of each limit that is named, or nothing, as [`Limiter::hold_all`] does.
    pub async fn hold<A: Into<Amount> + Copy>(
        &self,
        name: &str,
        amounts: &[(&str, A)],
        ttl: Duration,
    ) -> Result<Hold, Error> {
        self.limiter.hold_all(&self.parts(name, amounts)?, ttl).await
    }

    /// Makes all buckets of the name full.
    pub async fn reset(&self, name: &str) -> Result<(), Error> {
        for (which, _) in self.limits.iter() {
            self.limiter.reset(&joint_name(name, which)).await?;
        }
        Ok(())
    }

    fn parts<A: Into<Amount> + Copy>(&self, name: &str, amounts: &[(&str, A)]) -> Result<Vec<Part>, Error> {
        let part = |(which, amount): &(&str, A)| {
            let limit = self.limits.iter().find(|(other, _)| other == which);
            let unknown = || Error::BadArgument(format!("costs: there is no limit {which:?}"));
            Ok(Part::new(joint_name(name, which), &limit.ok_or_else(unknown)?.1, *amount))
        };
        amounts.iter().map(part).collect()
    }
}

/// `{alice}:requests`. The name is encoded, so that it ends no hash tag and is never empty.
fn joint_name(name: &str, which: &str) -> String {
    let encoded = match name {
        "" => "%".to_owned(),
        _ => name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"),
    };
    format!("{{{encoded}}}:{which}")
}
