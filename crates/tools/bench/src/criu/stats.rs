//! The statistics that a dump writes beside its images: two magic words, a length, and a message in
//! the wire format of protocol buffers.

/// CRIU's statistics of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpStats {
    /// How long the process was frozen, in microseconds.
    pub frozen_us: u64,
    /// Number of pages written.
    pub pages: u64,
}

const HEADER: usize = 12;
const DUMP: u64 = 1;
const FROZEN_TIME: u64 = 2;
const PAGES_WRITTEN: u64 = 7;

impl DumpStats {
    /// Parses the file `stats-dump`. `None` if it is invalid.
    pub fn parse(file: &[u8]) -> Option<DumpStats> {
        let [.., (_, Value::Bytes(dump))] = fields(file.get(HEADER..)?)?
            .into_iter()
            .filter(|(number, _)| *number == DUMP)
            .collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let fields = fields(dump)?;
        let number = |wanted: u64| {
            fields.iter().find_map(|field| match field {
                (number, Value::Number(value)) if *number == wanted => Some(*value),
                _ => None,
            })
        };
        Some(DumpStats { frozen_us: number(FROZEN_TIME)?, pages: number(PAGES_WRITTEN)? })
    }
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message. Only the two wire types of these statistics are supported.
fn fields(mut rest: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut rest)?),
            2 => {
                let length = varint(&mut rest)?;
                let (bytes, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_parsed_and_truncated_ones_are_refused() {
        let message = [0x08, 0x05, 0x10, 0xac, 0x02, 0x18, 0x01, 0x38, 0x80, 0x30];
        let mut file = vec![0; HEADER];
        file.extend([0x0a, message.len() as u8]);
        file.extend(message);
        assert_eq!(DumpStats::parse(&file), Some(DumpStats { frozen_us: 300, pages: 6144 }));
        for length in 0..file.len() {
            assert_eq!(DumpStats::parse(&file[..length]), None, "{length} bytes");
        }
    }
}
