//! The handshake: both ends prove that they have the shared key.

use std::io::{self, Read, Write};

use snow::{Builder, StatelessTransportState};

use super::failed::Failed;
use super::socket::Until;
use super::tls;
use super::wire::{ANSWER_BYTES, HELLO_BYTES, MAGIC, Status, VERSION, invalid, u32_at};
use crate::certificates::Certificates;
use crate::key::{KeyId, KeyRing, SharedKey};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// An ephemeral key and a tag; no payload.
const MESSAGE_BYTES: usize = 48;

fn builder<'b>(key: &'b SharedKey, hello: &'b [u8; HELLO_BYTES]) -> Result<Builder<'b>, Failed> {
    let pattern = PATTERN.parse().map_err(Failed::from)?;
    Ok(Builder::new(pattern).psk(0, key.secret())?.prologue(hello)?)
}

fn hello(id: KeyId) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[16..].copy_from_slice(&id);
    let sum = crc32c::crc32c(&hello);
    hello[12..16].copy_from_slice(&sum.to_le_bytes());
    hello
}

/// The connecting side. With certificates, the server's must be for `address`.
pub fn connect(
    stream: &mut Until<'_>,
    address: &str,
    key: &SharedKey,
    certificates: Option<&Certificates>,
) -> Result<StatelessTransportState, Failed> {
    let hello = hello(key.id());
    let key = match certificates {
        Some(certificates) => tls::connect(stream, certificates, address)?.bind(key)?,
        None => key.clone(),
    };
    let mut noise = builder(&key, &hello)?.build_initiator()?;
    let mut message = [0; MESSAGE_BYTES];
    noise.write_message(&[], &mut message)?;
    stream.write_all(&[&hello[..], &message].concat())?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer)?;
    if answer[..8] != MAGIC {
        return Err(invalid("it is not a farfork server").into());
    }
    let version = u32_at(&answer, 8).unwrap_or(0);
    match u32_at(&answer, 12) {
        _ if version != VERSION => return Err(Failed::OtherVersion(version)),
        Some(status) if status == Status::GoOn as u32 => {}
        Some(status) if status == Status::NoSuchKey as u32 => return Err(Failed::NoSuchKey),
        Some(status) if status == Status::TooMany as u32 => return Err(Failed::TooMany),
        Some(status) if status == Status::NeedsCertificates as u32 => {
            return Err(Failed::ClientWithoutTls);
        }
        _ => return Err(invalid("its answer is not one of this protocol").into()),
    }
    stream.read_exact(&mut message)?;
    noise.read_message(&message, &mut []).map_err(|_| Failed::PeerWithoutKey)?;
    Ok(noise.into_stateless_transport_mode()?)
}

/// The serving side. A client that has proved its key is let in if `admit` says so.
pub fn accept(
    stream: &mut Until<'_>,
    keys: &KeyRing,
    certificates: Option<&Certificates>,
    admit: impl FnOnce() -> bool,
) -> Result<StatelessTransportState, Failed> {
    let verified = match certificates.map(|own| tls::accept(stream, own)).transpose() {
        Err(Failed::ClientWithoutTls) => {
            // What is left unread could take the answer along.
            stream.read_exact(&mut [0; HELLO_BYTES - ANSWER_BYTES + MESSAGE_BYTES])?;
            return refuse(stream, Status::NeedsCertificates, Failed::ClientWithoutTls);
        }
        verified => verified?,
    };
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello)?;
    if verified.is_none() && tls::is_begun_by(&hello) {
        tls::skip_record(stream, &hello)?;
        return refuse(stream, Status::WithoutCertificates, Failed::PeerWithoutTls);
    }
    let mut summed = hello;
    summed[12..16].fill(0);
    if hello[..8] != MAGIC || u32_at(&hello, 12) != Some(crc32c::crc32c(&summed)) {
        return Err(invalid("it is not a farfork client").into());
    }
    let version = u32_at(&hello, 8).unwrap_or(0);
    if version != VERSION {
        answer(stream, Status::OtherVersion)?;
        return Err(Failed::OtherVersion(version));
    }
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message)?;
    let mut id = KeyId::default();
    id.copy_from_slice(&hello[16..]);
    // An unknown key and a wrong one get the same answer: names of keys cannot be guessed at.
    let key = match (keys(&id), &verified) {
        (Some(key), Some(verified)) => Some(verified.bind(&key)?),
        (key, _) => key,
    };
    let mut noise = match &key {
        Some(key) => builder(key, &hello)?.build_responder()?,
        None => return refuse(stream, Status::NoSuchKey, Failed::NoSuchKey),
    };
    if noise.read_message(&message, &mut []).is_err() {
        return refuse(stream, Status::NoSuchKey, Failed::PeerWithoutKey);
    }
    if !admit() {
        return refuse(stream, Status::TooMany, Failed::TooMany);
    }
    noise.write_message(&[], &mut message)?;
    stream.write_all(&[&answer_bytes(Status::GoOn)[..], &message].concat())?;
    Ok(noise.into_stateless_transport_mode()?)
}

fn refuse<T>(stream: &mut Until<'_>, status: Status, failed: Failed) -> Result<T, Failed> {
    answer(stream, status)?;
    Err(failed)
}

/// Answers a hello without going on.
fn answer(stream: &mut Until<'_>, status: Status) -> io::Result<()> {
    stream.write_all(&answer_bytes(status))
}

fn answer_bytes(status: Status) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    answer[..8].copy_from_slice(&MAGIC);
    answer[8..12].copy_from_slice(&VERSION.to_le_bytes());
    answer[12..].copy_from_slice(&(status as u32).to_le_bytes());
    answer
}
