//! TLS, where certificates are demanded: what it is used for, and where it ends.
//!
//! ```text
//!   client                                   server
//!     ── ClientHello … ────────────────────►    verifies nothing yet
//!     ◄─ …, certificate, Finished ──────────    its certificate
//!   verifies it
//!     ── certificate, …, Finished ─────────►    verifies it
//!     ◄─ one byte: the certificate is good ─
//!   both: key of the hello = exporter of TLS (RFC 8446, 7.5), with the shared key as its context
//!     ── hello, handshake, sealed frames ──     as without TLS
//! ```
//! TLS proves the certificates, and gives both ends a secret that no other has. It ends then: the key that the hello
//! names is mixed with that secret, so that frames can be opened only by an end that has the shared key *and* has made
//! this very TLS connection. DTLS-SRTP (RFC 5764) uses TLS in this way. A frame is sealed once, and its two
//! directions need no common state, which TLS would have.
//!
//! Invariants:
//! 1. Not a byte beyond the last record of TLS is read: records are taken one by one.
//! 2. An end that has certificates never goes on without TLS.

use std::io::{self, Read, Write};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};

use super::failed::Failed;
use super::socket::Until;
use super::wire::{ANSWER_BYTES, MAGIC, Status, invalid, u32_at};
use crate::certificates::Certificates;
use crate::key::SharedKey;

/// Type, version and length of a record.
const RECORD_HEADER_BYTES: usize = 5;
/// What a record may have after them.
const MAX_RECORD_BYTES: usize = (16 << 10) + 256;
/// More than any handshake with these settings has.
const MAX_RECORDS: usize = 64;
/// The server's word that it has verified the client.
const GOOD: u8 = 1;
const LABEL: &[u8] = b"EXPORTER-farfork-fabric";
const KEY_BYTES: usize = 32;

/// A connection of which both ends are verified.
pub struct Verified(Connection);

impl Verified {
    /// The shared key as this connection uses it.
    pub fn bind(&self, key: &SharedKey) -> Result<SharedKey, Failed> {
        let (into, context) = ([0; KEY_BYTES], Some(&key.secret()[..]));
        let bound = match &self.0 {
            Connection::Client(connection) => {
                connection.export_keying_material(into, LABEL, context)
            }
            Connection::Server(connection) => {
                connection.export_keying_material(into, LABEL, context)
            }
        };
        Ok(SharedKey::new(key.id(), bound.map_err(Failed::Tls)?))
    }
}

/// The connecting side. The server's certificate must be for `address`, such as `10.0.0.2:7070`.
pub fn connect(
    socket: &mut Until<'_>,
    certificates: &Certificates,
    address: &str,
) -> Result<Verified, Failed> {
    let name =
        name_of(address).ok_or_else(|| invalid("a certificate cannot be for such an address"))?;
    let begun = ClientConnection::new(certificates.client.clone(), name).map_err(Failed::Tls)?;
    let mut connection = Connection::from(begun);
    finish(&mut connection, socket)?;
    let mut word = [0];
    for _ in 0..MAX_RECORDS {
        match connection.reader().read(&mut word) {
            Ok(1) if word == [GOOD] => return Ok(Verified(connection)),
            Ok(_) => return Err(invalid("its answer is not one of this protocol").into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                take_record(&mut connection, socket)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(too_long())
}

/// The serving side.
pub fn accept(socket: &mut Until<'_>, certificates: &Certificates) -> Result<Verified, Failed> {
    let begun = ServerConnection::new(certificates.server.clone()).map_err(Failed::Tls)?;
    let mut connection = Connection::from(begun);
    finish(&mut connection, socket)?;
    connection.writer().write_all(&[GOOD])?;
    send(&mut connection, socket)?;
    Ok(Verified(connection))
}

/// Host or address, without the port.
fn name_of(address: &str) -> Option<ServerName<'static>> {
    let (host, _port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).ok()
}

fn finish(connection: &mut Connection, socket: &mut Until<'_>) -> Result<(), Failed> {
    for _ in 0..MAX_RECORDS {
        send(connection, socket)?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        take_record(connection, socket)?;
    }
    Err(too_long())
}

fn send(connection: &mut Connection, socket: &mut Until<'_>) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(socket)?;
    }
    Ok(())
}

fn too_long() -> Failed {
    invalid("the peer's handshake does not end").into()
}

/// Takes in one record. What the peer has done wrong it hears.
fn take_record(connection: &mut Connection, socket: &mut Until<'_>) -> Result<(), Failed> {
    let record = read_record(socket)?;
    let mut left = &record[..];
    while !left.is_empty() {
        connection.read_tls(&mut left)?;
        if let Err(error) = connection.process_new_packets() {
            let _ = send(connection, socket);
            return Err(match error {
                rustls::Error::AlertReceived(alert) => Failed::CertificateRefused(alert),
                other => Failed::Tls(other),
            });
        }
    }
    Ok(())
}

fn read_record(socket: &mut Until<'_>) -> Result<Vec<u8>, Failed> {
    let mut record = vec![0; RECORD_HEADER_BYTES];
    socket.read_exact(&mut record)?;
    if record[..] == MAGIC[..RECORD_HEADER_BYTES] {
        return Err(without_tls(socket, record));
    }
    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
    if record[1] != 3 || length > MAX_RECORD_BYTES {
        return Err(invalid("the peer does not use TLS").into());
    }
    record.resize(RECORD_HEADER_BYTES + length, 0);
    socket.read_exact(&mut record[RECORD_HEADER_BYTES..])?;
    Ok(record)
}

/// A client's hello, or a server's answer, begins with the magic where TLS was expected.
fn without_tls(socket: &mut Until<'_>, mut bytes: Vec<u8>) -> Failed {
    bytes.resize(ANSWER_BYTES, 0);
    let is_answer = socket.read_exact(&mut bytes[RECORD_HEADER_BYTES..]).is_ok()
        && u32_at(&bytes, 12) == Some(Status::WithoutCertificates as u32);
    if is_answer { Failed::PeerWithoutTls } else { Failed::ClientWithoutTls }
}

/// Whether a client that should begin with a hello uses TLS.
pub fn is_begun_by(bytes: &[u8]) -> bool {
    const HANDSHAKE: u8 = 22;
    bytes.starts_with(&[HANDSHAKE, 3])
}

/// Reads the rest of a record.
pub fn skip_record(socket: &mut Until<'_>, begun: &[u8]) -> io::Result<()> {
    let length = usize::from(u16::from_be_bytes([begun[3], begun[4]])) + RECORD_HEADER_BYTES;
    socket.read_exact(&mut vec![0; length.saturating_sub(begun.len())])
}

/// Why a server has refused a client's certificate, as far as TLS can say it.
pub fn alert_words(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "it has expired or is not valid yet (by the clock there)".to_owned()
        }
        AlertDescription::UnknownCA => {
            "it is signed by an authority (CA) that is not trusted there".to_owned()
        }
        AlertDescription::UnsupportedCertificate => {
            "it is not for clients (extendedKeyUsage)".to_owned()
        }
        AlertDescription::CertificateRequired => "none was sent".to_owned(),
        AlertDescription::BadCertificate | AlertDescription::DecryptError => {
            "its signature is not that of the authority (CA) that it names, or it is damaged"
                .to_owned()
        }
        other => format!("the alert of TLS is {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_addresses_without_ports() {
        let name = |address| name_of(address).map(|name| name.to_str().into_owned());
        assert_eq!(name("10.0.0.1:7").as_deref(), Some("10.0.0.1"));
        assert_eq!(name("[fd00::1]:7").as_deref(), Some("fd00::1"));
        assert_eq!(name("pool.example:7").as_deref(), Some("pool.example"));
        assert_eq!(name("pool"), None);
        assert_eq!(name("a b:7"), None);
    }
}
