//! Requests and replies of `/json`, as proto3 JSON.

use std::io;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::ser::Formatter;
use serde_path_to_error::Track;

use super::ENVOY_DESCRIPTORS;
use crate::messages::{Request, Response};

static MESSAGES: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(ENVOY_DESCRIPTORS).unwrap_or_else(|error| unreachable!("ratelimit.binpb: {error}"))
});

fn descriptor(name: &str) -> MessageDescriptor {
    let message = MESSAGES.get_message_by_name(&format!("envoy.service.ratelimit.v3.{name}"));
    message.unwrap_or_else(|| unreachable!("ratelimit.binpb has no {name}"))
}

/// Reads a request. Names are in lowerCamelCase or as in the .proto file; an unknown one is a mistake.
///
/// # Errors
///
/// What is wrong and where, in one line.
pub(super) fn request(body: &[u8]) -> Result<Request, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut field = Track::new();
    let fields = serde_path_to_error::Deserializer::new(&mut json, &mut field);
    let request = DynamicMessage::deserialize(descriptor("RateLimitRequest"), fields);
    let request = request.map_err(|error| match field.path().to_string().as_str() {
        "." => error.to_string(),
        field => format!("{field}: {error}"),
    })?;
    json.end().map_err(|error| error.to_string())?;
    request.transcode_to().map_err(|error| error.to_string())
}

/// # Errors
///
/// The response is not as the descriptors say.
pub(super) fn response(response: &Response) -> Result<Vec<u8>, String> {
    let mut message = DynamicMessage::new(descriptor("RateLimitResponse"));
    message.transcode_from(response).map_err(|error| error.to_string())?;
    let mut json = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut json, WholeNumbers);
    let written = message.serialize_with_options(&mut writer, &SerializeOptions::default());
    written.map(|()| json).map_err(|error| error.to_string())
}

/// Writes a float that is whole without a point, as protobuf does.
struct WholeNumbers;

impl Formatter for WholeNumbers {
    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        write!(writer, "{value}")
    }
}
