//! What the word of a span says.

use crate::sizes::Class;

/// What the word of a span says.
///
/// ```text
///  byte 0  client    1  kind    2  class    3  0    4–7  number
///          0            0 free                      0
///          its client   1 slots  of its class       0          objects of one class; client 0: adopted by the next
///          its client   2 claimed                   first      a run in the making
///          its client   3 run                       spans      an object of whole spans begins here
///          0            4 rest                      first      of the run that begins there
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    Free,
    Slots { client: u8, class: Class },
    Claimed { client: u8, first: u32 },
    Run { client: u8, spans: u32 },
    Rest { first: u32 },
}

impl Span {
    pub(crate) fn word(self) -> u64 {
        let (client, kind, class, number) = match self {
            Span::Free => (0, 0, 0, 0),
            Span::Slots { client, class } => (client, 1, class.number(), 0),
            Span::Claimed { client, first } => (client, 2, 0, first),
            Span::Run { client, spans } => (client, 3, 0, spans),
            Span::Rest { first } => (0, 4, 0, first),
        };
        let low = u64::from(client) | kind << 8 | u64::from(class) << 16;
        low | u64::from(number) << 32
    }

    /// `None` if a span cannot have this word.
    pub(crate) fn of(word: u64) -> Option<Span> {
        let [client, kind, class, ..] = word.to_le_bytes();
        let number = (word >> 32) as u32;
        let span = match kind {
            0 => Span::Free,
            1 => Span::Slots { client, class: Class::new(class)? },
            2 => Span::Claimed { client, first: number },
            3 => Span::Run { client, spans: number },
            4 => Span::Rest { first: number },
            _ => return None,
        };
        (span.word() == word).then_some(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_spans_lie_as_drawn() {
        let class = Class::of(64).expect("a class");
        let words = [
            (Span::Free, 0),
            (Span::Slots { client: 7, class }, 0x0003_0107),
            (Span::Claimed { client: 7, first: 9 }, 9 << 32 | 0x0207),
            (Span::Run { client: 7, spans: 9 }, 9 << 32 | 0x0307),
            (Span::Rest { first: 9 }, 9 << 32 | 0x0400),
        ];
        for (span, word) in words {
            assert_eq!((span.word(), Span::of(word)), (word, Some(span)));
        }
        for wrong in [1, 0x0500, 0xff_0107, 1 << 24, 0x0401] {
            assert_eq!(Span::of(wrong), None, "{wrong:#x}");
        }
    }
}
