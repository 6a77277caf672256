//! Reads configurations of a control plane, by the reader of files.
//!
//! Nodes have lines: here, line 1 is the configuration, and each descriptor has its own, in their order.

use envoy_types::pb::google::protobuf::value::Kind;

use super::file::Reader;
use super::yaml::{shown, Data, Faults, Node, Scalar};
use super::{Limits, Options};
use crate::messages::{Struct, Unit, Value};
use messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

/// The messages of envoyproxy/ratelimit's `rls_conf.proto`, where fields are described.
#[rustfmt::skip] // a line for each field
pub mod messages {
    use crate::messages::Struct;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitConfig {
        #[prost(string, tag = "1")] pub name: String,
        #[prost(string, tag = "2")] pub domain: String,
        #[prost(message, repeated, tag = "3")] pub descriptors: Vec<RateLimitDescriptor>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitDescriptor {
        #[prost(string, tag = "1")] pub key: String,
        #[prost(string, tag = "2")] pub value: String,
        #[prost(message, optional, tag = "3")] pub rate_limit: Option<RateLimitPolicy>,
        #[prost(message, repeated, tag = "4")] pub descriptors: Vec<RateLimitDescriptor>,
        #[prost(bool, tag = "5")] pub shadow_mode: bool,
        #[prost(bool, tag = "6")] pub detailed_metric: bool,
        #[prost(bool, tag = "7")] pub quota_mode: bool,
        #[prost(message, optional, tag = "8")] pub metadata: Option<Struct>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitPolicy {
        #[prost(int32, tag = "1")] pub unit: i32,
        #[prost(uint32, tag = "2")] pub requests_per_unit: u32,
        #[prost(bool, tag = "3")] pub unlimited: bool,
        #[prost(string, tag = "4")] pub name: String,
        #[prost(message, repeated, tag = "5")] pub replaces: Vec<RateLimitReplace>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RateLimitReplace {
        #[prost(string, tag = "1")] pub name: String,
    }
}

impl Limits {
    /// Reads configurations of a control plane, each a domain.
    ///
    /// # Errors
    ///
    /// The first mistake, with the names of its configuration and its descriptor.
    pub fn of_configs(configs: &[RateLimitConfig], options: &Options) -> Result<Self, String> {
        let mut limits = Self { hash_tag_key: options.hash_tag_key.clone(), ..Self::default() };
        for config in configs {
            let mut reader = Reader { name: config.name.as_str().into(), faults: Faults::default() };
            let root = [("domain", text(&config.domain)), ("descriptors", list(&config.descriptors, &mut 1))];
            reader.root(&Node { line: 1, data: map(1, root) }, &mut limits, options.merge);
            if let Some(fault) = reader.faults.sorted().first() {
                let path = path(&config.descriptors, &mut fault.line.saturating_sub(1));
                let descriptor =
                    path.map_or(String::new(), |path| format!(", descriptor '{}'", shown(&path)));
                return Err(format!("config '{}'{descriptor}: {}", shown(&config.name), fault.problem));
            }
        }
        Ok(limits)
    }
}

/// Returns the keys and values that lead to a descriptor by its number, from 1 on, which is counted down.
fn path(descriptors: &[RateLimitDescriptor], number: &mut usize) -> Option<String> {
    for RateLimitDescriptor { key, value, descriptors, .. } in descriptors {
        *number = number.checked_sub(1)?;
        let own = format!("{key}{}{value}", if value.is_empty() { "" } else { "_" });
        if *number == 0 {
            return Some(own);
        }
        if let Some(below) = path(descriptors, number) {
            return Some(format!("{own}.{below}"));
        }
    }
    None
}

/// Counts the line up for each descriptor.
fn list<'a>(descriptors: &'a [RateLimitDescriptor], line: &mut usize) -> Data<'a> {
    let node = |one: &'a RateLimitDescriptor| {
        *line = line.saturating_add(1);
        Node { line: *line, data: descriptor(one, line) }
    };
    Data::List(descriptors.iter().map(node).collect())
}

fn descriptor<'a>(one: &'a RateLimitDescriptor, line: &mut usize) -> Data<'a> {
    let own = *line;
    let pairs = [
        ("key", text(&one.key)),
        ("value", text(&one.value)),
        ("rate_limit", one.rate_limit.as_ref().map_or_else(|| plain("null"), |limit| rate_limit(own, limit))),
        ("shadow_mode", plain(one.shadow_mode)),
        ("detailed_metric", plain(one.detailed_metric)),
        ("quota_mode", plain(one.quota_mode)),
        ("metadata", one.metadata.as_ref().map_or_else(|| plain("null"), |metadata| fields(own, metadata))),
        ("descriptors", list(&one.descriptors, line)),
    ];
    map(own, pairs)
}

fn rate_limit(line: usize, limit: &RateLimitPolicy) -> Data<'_> {
    let replaced = limit.replaces.iter().map(|other| map(line, [("name", text(&other.name))]));
    let pairs = [
        (
            "unit",
            Unit::try_from(limit.unit).map_or_else(|_| plain(limit.unit), |unit| text(unit.as_str_name())),
        ),
        ("requests_per_unit", plain(limit.requests_per_unit)),
        ("unlimited", plain(limit.unlimited)),
        ("name", text(&limit.name)),
        ("replaces", Data::List(replaced.map(|data| Node { line, data }).collect())),
    ];
    map(line, pairs)
}

fn map<'a>(line: usize, pairs: impl IntoIterator<Item = (&'a str, Data<'a>)>) -> Data<'a> {
    let node = |data| Node { line, data };
    Data::Map(pairs.into_iter().map(|(key, value)| (node(text(key)), node(value))).collect())
}

fn text(text: &str) -> Data<'_> {
    Data::Scalar(Scalar { text: text.into(), plain: false })
}

fn plain<'a>(value: impl ToString) -> Data<'a> {
    Data::Scalar(Scalar { text: value.to_string().into(), plain: true })
}

fn fields(line: usize, metadata: &Struct) -> Data<'_> {
    map(line, metadata.fields.iter().map(|(key, value)| (key.as_str(), any(line, value))))
}

fn any(line: usize, value: &Value) -> Data<'_> {
    let node = |value| Node { line, data: any(line, value) };
    match &value.kind {
        Some(Kind::StructValue(metadata)) => fields(line, metadata),
        Some(Kind::ListValue(list)) => Data::List(list.values.iter().map(node).collect()),
        Some(Kind::StringValue(string)) => text(string),
        Some(Kind::NumberValue(number)) => plain(number),
        Some(Kind::BoolValue(truth)) => plain(truth),
        Some(Kind::NullValue(_)) | None => plain("null"),
    }
}
