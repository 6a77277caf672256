//! What `tracing` hears.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tokenbucket_client::fake::Fake;
use tokenbucket_client::{sync, Options};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::limit;

/// Each event with the name of the span around it.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut text = context.event_span(event).map_or("", |span| span.name()).to_owned();
        event.record(&mut Fields(&mut text));
        self.0.lock().unwrap().push(text);
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "took" {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}

#[test]
fn each_decision_is_an_event_in_the_span_of_whoever_asked() {
    let events = Events::default();
    tracing::subscriber::with_default(Registry::default().with(events.clone()), || {
        let fake = Fake::new();
        let limiter =
            sync::Limiter::with_options(&fake.server(), limit(1, "1/m"), Options::new().prefix("login:"));
        // A test on another thread, which has no subscriber, may be the first that tracing asks about this event.
        while std::mem::take(&mut *events.0.lock().unwrap()).is_empty() {
            tracing::callsite::rebuild_interest_cache();
            limiter.take("first", 1).unwrap();
        }
        tracing::info_span!("request").in_scope(|| {
            limiter.take("alice", 1).unwrap();
            limiter.take("alice", 1).unwrap();
        });
        fake.set_away(true);
        limiter.take("alice", 1).unwrap();
    });
    let told = |span, decided| format!("{span} message=decided key=\"login:alice\" limit=1 1/m {decided}");
    assert_eq!(
        *events.0.lock().unwrap(),
        [
            told("request", "allowed=true shadowed=false remaining=0 retry_after_ms=0 degraded=false"),
            told("request", "allowed=false shadowed=false remaining=0 retry_after_ms=60000 degraded=false"),
            told("", "allowed=true shadowed=false remaining=0 retry_after_ms=0 degraded=true"),
        ]
    );
}
