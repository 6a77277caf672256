//! Reads the requests of Envoy and Kuadrant from their bytes, within bounds.
//!
//! Envoy copies header values into fields that protobuf requires to be UTF-8. A generated decoder would refuse such a request as
//! a whole, and Envoy lets requests pass on errors: one byte would bypass every limit. So text is decoded lossily here.

use std::io;
use std::marker::PhantomData;

use envoy_types::pb::google::protobuf::UInt64Value;
use prost::bytes::Buf;
use prost::encoding::{decode_key, decode_varint, skip_field, DecodeContext, WireType};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::Status;
use tonic_prost::ProstEncoder;

use crate::decide::{MOST_DESCRIPTORS, MOST_ENTRIES};
use crate::messages::{CommitRequest, Descriptor, Duration, Entry, Override, Request, ReserveRequest};

/// Requests in, responses out.
pub(super) struct RequestCodec<Asked, Reply>(PhantomData<fn(Asked) -> Reply>);

impl<Asked, Reply> RequestCodec<Asked, Reply> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

/// A request that is read lossily.
pub(super) trait Read: Sized {
    /// Keeps one too many of more descriptors or entries than a request may have, so that the decider refuses it.
    fn read(bytes: &[u8]) -> io::Result<Self>;
}

impl<Asked: Read + Send + 'static, Reply: Message + 'static> Codec for RequestCodec<Asked, Reply> {
    type Encode = Reply;
    type Decode = Asked;
    type Encoder = ProstEncoder<Reply>;
    type Decoder = Self;

    fn encoder(&mut self) -> ProstEncoder<Reply> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<Asked: Read, Reply> Decoder for RequestCodec<Asked, Reply> {
    type Item = Asked;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Asked>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        Asked::read(&bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Read for Request {
    fn read(bytes: &[u8]) -> io::Result<Self> {
        let mut request = Self::default();
        let Self { domain, descriptors, hits_addend } = &mut request;
        // A cast keeps the lower half, as protobuf wants it.
        each_other_field(bytes, domain, descriptors, |field| {
            if let Field::Number(3, hits) = field {
                *hits_addend = hits as u32;
            }
            Ok(())
        })?;
        Ok(request)
    }
}

impl Read for ReserveRequest {
    fn read(bytes: &[u8]) -> io::Result<Self> {
        let mut request = Self::default();
        let Self { domain, descriptors, amount, ttl } = &mut request;
        each_other_field(bytes, domain, descriptors, |field| {
            match field {
                Field::Number(3, tokens) => *amount = tokens,
                Field::Bytes(4, bytes) => *ttl = Some(Duration::decode(bytes)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(request)
    }
}

impl Read for CommitRequest {
    fn read(bytes: &[u8]) -> io::Result<Self> {
        let mut request = Self::default();
        let Self { domain, descriptors, reservation_id, actual_amount } = &mut request;
        each_other_field(bytes, domain, descriptors, |field| {
            match field {
                Field::Bytes(3, id) => *reservation_id = text(id),
                Field::Number(4, tokens) => *actual_amount = tokens,
                _ => {}
            }
            Ok(())
        })?;
        Ok(request)
    }
}

/// Reads domain and descriptors, which all requests begin with, and calls `read` with each other field.
fn each_other_field<'a>(
    bytes: &'a [u8],
    domain: &mut String,
    descriptors: &mut Vec<Descriptor>,
    mut read: impl FnMut(Field<'a>) -> io::Result<()>,
) -> io::Result<()> {
    let mut entries = 0;
    each_field(bytes, |field| {
        match field {
            Field::Bytes(1, bytes) => *domain = text(bytes),
            Field::Bytes(2, bytes) if descriptors.len() <= MOST_DESCRIPTORS => {
                descriptors.push(descriptor(bytes, &mut entries)?);
            }
            other => read(other)?,
        }
        Ok(())
    })
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

/// Calls `read` with each field of a message; skips fields of fixed size, of which these requests have none.
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
