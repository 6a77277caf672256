//! Reads Envoy's request from its bytes, within bounds.
//!
//! Envoy copies header values into fields that protobuf requires to be UTF-8. A generated decoder would refuse such a request as
//! a whole, and Envoy lets requests pass on errors: one byte would bypass every limit. So text is decoded lossily here.

use std::io;

use envoy_types::pb::google::protobuf::UInt64Value;
use prost::bytes::Buf;
use prost::encoding::{decode_key, decode_varint, skip_field, DecodeContext, WireType};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::Status;

use crate::decide::{MOST_DESCRIPTORS, MOST_ENTRIES};
use crate::messages::{Descriptor, Entry, Override, Request, Response};

/// Requests in, responses out.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestCodec;

impl Codec for RequestCodec {
    type Encode = Response;
    type Decode = Request;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RequestCodec {
    type Item = Response;
    type Error = Status;

    fn encode(&mut self, response: Response, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        response.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for RequestCodec {
    type Item = Request;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Request>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        request(&bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Reads `envoy.service.ratelimit.v3.RateLimitRequest`. Of more descriptors or entries than a request may have it keeps one too
/// many, so that the decider refuses it.
fn request(bytes: &[u8]) -> io::Result<Request> {
    let (mut request, mut entries) = (Request::default(), 0);
    each_field(bytes, |field| {
        match field {
            Field::Bytes(1, domain) => request.domain = text(domain),
            Field::Bytes(2, bytes) if request.descriptors.len() <= MOST_DESCRIPTORS => {
                request.descriptors.push(descriptor(bytes, &mut entries)?);
            }
            // A cast keeps the lower half, as protobuf wants it.
            Field::Number(3, hits) => request.hits_addend = hits as u32,
            _ => {}
        }
        Ok(())
    })?;
    Ok(request)
}

fn descriptor(bytes: &[u8], entries: &mut usize) -> io::Result<Descriptor> {
    let mut descriptor = Descriptor::default();
    each_field(bytes, |field| {
        match field {
            Field::Bytes(1, bytes) if *entries <= MOST_ENTRIES => {
                *entries += 1;
                descriptor.entries.push(entry(bytes)?);
            }
            Field::Bytes(2, limit) => descriptor.limit = Some(Override::decode(limit)?),
            Field::Bytes(3, hits) => descriptor.hits_addend = Some(UInt64Value::decode(hits)?),
            Field::Number(4, is_negative) => descriptor.is_negative_hits = is_negative != 0,
            _ => {}
        }
        Ok(())
    })?;
    Ok(descriptor)
}

fn entry(bytes: &[u8]) -> io::Result<Entry> {
    let mut entry = Entry::default();
    each_field(bytes, |field| {
        match field {
            Field::Bytes(1, key) => entry.key = text(key),
            Field::Bytes(2, value) => entry.value = text(value),
            _ => {}
        }
        Ok(())
    })?;
    Ok(entry)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A field's number and value.
enum Field<'a> {
    Number(u32, u64),
    Bytes(u32, &'a [u8]),
}

/// Calls `read` with each field of a message; skips fields of fixed size, of which Envoy's request has none.
fn each_field<'a>(mut bytes: &'a [u8], mut read: impl FnMut(Field<'a>) -> io::Result<()>) -> io::Result<()> {
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        match wire_type {
            WireType::Varint => read(Field::Number(tag, decode_varint(&mut bytes)?))?,
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut bytes)?).unwrap_or(usize::MAX);
                let ends_early = || io::Error::from(io::ErrorKind::UnexpectedEof);
                let (value, rest) = bytes.split_at_checked(length).ok_or_else(ends_early)?;
                bytes = rest;
                read(Field::Bytes(tag, value))?;
            }
            _ => skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?,
        }
    }
    Ok(())
}
