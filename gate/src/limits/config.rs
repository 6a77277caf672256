//! Reads configurations of a control plane, by the reader of files.
//!
//! Nodes have lines: here, line 1 is the configuration, and each descriptor has its own, in their order.

use envoy_types::pb::google::protobuf::value::Kind;

use super::file::Reader;
use super::yaml::{shown, Data, Node, Scalar};
use super::{Limits, Options};
use crate::messages::{Struct, Unit, Value};
use messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace};

/// The messages, whose fields `rls_conf.proto` describes.
#[allow(missing_docs)]
pub mod messages {
    use crate::messages::Struct;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitConfig {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub domain: String,
        #[prost(message, repeated, tag = "3")]
        pub descriptors: Vec<RateLimitDescriptor>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitDescriptor {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(string, tag = "2")]
        pub value: String,
        #[prost(message, optional, tag = "3")]
        pub rate_limit: Option<RateLimitPolicy>,
        #[prost(message, repeated, tag = "4")]
        pub descriptors: Vec<RateLimitDescriptor>,
        #[prost(bool, tag = "5")]
        pub shadow_mode: bool,
        #[prost(bool, tag = "6")]
        pub detailed_metric: bool,
        #[prost(bool, tag = "7")]
        pub quota_mode: bool,
        #[prost(message, optional, tag = "8")]
        pub metadata: Option<Struct>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitPolicy {
        #[prost(int32, tag = "1")]
        pub unit: i32,
        #[prost(uint32, tag = "2")]
        pub requests_per_unit: u32,
        #[prost(bool, tag = "3")]
        pub unlimited: bool,
        #[prost(string, tag = "4")]
        pub name: String,
        #[prost(message, repeated, tag = "5")]
        pub replaces: Vec<RateLimitReplace>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitReplace {
        #[prost(string, tag = "1")]
        pub name: String,
    }
}

/// Reads all configurations, or returns the first mistake.
pub(super) fn read(configs: &[RateLimitConfig], options: &Options) -> Result<Limits, String> {
    let mut limits = Limits { hash_tag_key: options.hash_tag_key.clone(), ..Limits::default() };
    for config in configs {
        let mut reader = Reader::new(&config.name);
        reader.root(&Lines(1).root(config), &mut limits, options.merge);
        if let Some(fault) = reader.faults().first() {
            let mut line = fault.line.saturating_sub(1);
            let descriptor = path(&config.descriptors, &mut line);
            let descriptor =
                descriptor.map_or(String::new(), |path| format!(", descriptor '{}'", shown(&path)));
            return Err(format!("config '{}'{descriptor}: {}", shown(&config.name), fault.problem));
        }
    }
    Ok(limits)
}

/// Returns the keys and values that lead to a descriptor by its number, from 1 on, which is counted down.
fn path(descriptors: &[RateLimitDescriptor], number: &mut usize) -> Option<String> {
    for RateLimitDescriptor { key, value, descriptors, .. } in descriptors {
        *number = number.checked_sub(1)?;
        let separator = if value.is_empty() { "" } else { "_" };
        if *number == 0 {
            return Some(format!("{key}{separator}{value}"));
        }
        if let Some(below) = path(descriptors, number) {
            return Some(format!("{key}{separator}{value}.{below}"));
        }
    }
    None
}

/// The line of the next descriptor.
struct Lines(usize);

type Pair<'a> = (&'a str, Option<Data<'a>>);

impl Lines {
    fn root<'a>(&mut self, config: &'a RateLimitConfig) -> Node<'a> {
        let descriptors = self.descriptors(&config.descriptors);
        Node { line: 1, data: map(1, [("domain", text(&config.domain)), ("descriptors", descriptors)]) }
    }

    fn descriptors<'a>(&mut self, all: &'a [RateLimitDescriptor]) -> Option<Data<'a>> {
        let nodes = all.iter().map(|one| self.descriptor(one)).collect::<Vec<_>>();
        (!nodes.is_empty()).then_some(Data::List(nodes))
    }

    fn descriptor<'a>(&mut self, one: &'a RateLimitDescriptor) -> Node<'a> {
        self.0 = self.0.saturating_add(1);
        let line = self.0;
        let pairs = [
            ("key", text(&one.key)),
            ("value", text(&one.value)),
            ("rate_limit", one.rate_limit.as_ref().map(|limit| rate_limit(line, limit))),
            ("shadow_mode", truth(one.shadow_mode)),
            ("detailed_metric", truth(one.detailed_metric)),
            ("quota_mode", truth(one.quota_mode)),
            ("metadata", one.metadata.as_ref().map(|metadata| fields(line, metadata))),
            ("descriptors", self.descriptors(&one.descriptors)),
        ];
        Node { line, data: map(line, pairs) }
    }
}

fn rate_limit(line: usize, limit: &RateLimitPolicy) -> Data<'_> {
    let unit = Unit::try_from(limit.unit);
    let unit = unit.map_or_else(|_| Scalar::plain(limit.unit), |unit| Scalar::quoted(unit.as_str_name()));
    let replaced = limit.replaces.iter().map(|RateLimitReplace { name }| map(line, [("name", text(name))]));
    let replaced = replaced.map(|data| Node { line, data });
    let pairs = [
        ("unit", Some(Data::Scalar(unit))),
        ("requests_per_unit", Some(Data::Scalar(Scalar::plain(limit.requests_per_unit)))),
        ("unlimited", truth(limit.unlimited)),
        ("name", text(&limit.name)),
        ("replaces", Some(Data::List(replaced.collect()))),
    ];
    map(line, pairs)
}

fn map<'a>(line: usize, pairs: impl IntoIterator<Item = Pair<'a>>) -> Data<'a> {
    let node = |data| Node { line, data };
    let pair = |(key, value): Pair<'a>| Some((node(Data::Scalar(Scalar::quoted(key))), node(value?)));
    Data::Map(pairs.into_iter().filter_map(pair).collect())
}

fn text(text: &str) -> Option<Data<'_>> {
    (!text.is_empty()).then(|| Data::Scalar(Scalar::quoted(text)))
}

fn truth(truth: bool) -> Option<Data<'static>> {
    truth.then(|| Data::Scalar(Scalar::plain(true)))
}

fn fields(line: usize, metadata: &Struct) -> Data<'_> {
    map(line, metadata.fields.iter().map(|(key, value)| (key.as_str(), Some(any(line, value)))))
}

fn any(line: usize, value: &Value) -> Data<'_> {
    let scalar = match &value.kind {
        Some(Kind::StructValue(metadata)) => return fields(line, metadata),
        Some(Kind::ListValue(list)) => {
            return Data::List(list.values.iter().map(|item| Node { line, data: any(line, item) }).collect())
        }
        Some(Kind::StringValue(text)) => Scalar::quoted(text),
        Some(Kind::NumberValue(number)) => Scalar::plain(number),
        Some(Kind::BoolValue(truth)) => Scalar::plain(truth),
        Some(Kind::NullValue(_)) | None => Scalar::plain("null"),
    };
    Data::Scalar(scalar)
}
