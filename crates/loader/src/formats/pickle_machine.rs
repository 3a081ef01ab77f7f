//! Reads the pickle that `torch.save` writes for a state dictionary: the part of protocol 2 that describes
//! tensors. It runs nothing: a global is a name, and a call is only recorded. What it reads are [`Object`]s; shared ones
//! stay shared, so that a copy costs one pointer.
//!
//! Any input takes one pass, with time and memory in proportion.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// The deepest nesting of tuples. A tensor needs four; dropping an object recurses this deep.
const DEEPEST: usize = 64;

#[derive(Clone)]
pub(super) enum Object<'a> {
    /// `None`, a bool, a float, or a dictionary inside another object: tensors do not need them.
    Other,
    Int(i64),
    Text(&'a str),
    Global(Global<'a>),
    /// A list without its items, which tensors do not need.
    List,
    Tuple(Rc<Tuple<'a>>),
    /// The memo shares it while it is filled.
    Dict(Rc<RefCell<Entries<'a>>>),
    /// A function that is not called, and its arguments.
    Call(Global<'a>, Rc<Tuple<'a>>),
    /// The description of an object that lies outside the pickle.
    Persistent(Rc<Tuple<'a>>),
}

/// Keys and values, in their order.
pub(super) type Entries<'a> = Vec<(Object<'a>, Object<'a>)>;

impl Object<'_> {
    /// The form of this object inside another one. A dictionary can change after it was put somewhere, and can even
    /// contain itself, so it is dropped. Tuples never change, and without dictionaries only tuples nest.
    pub(super) fn inside(self) -> Self {
        if let Self::Dict(_) = self { Self::Other } else { self }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Tuple(tuple) | Self::Call(_, tuple) | Self::Persistent(tuple) => tuple.depth,
            _ => 0,
        }
    }
}

/// A name in a Python module.
#[derive(Clone, Copy)]
pub(super) struct Global<'a> {
    pub(super) module: &'a str,
    pub(super) name: &'a str,
}

impl fmt::Display for Global<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.name)
    }
}

/// Objects that never change, no deeper than [`DEEPEST`].
pub(super) struct Tuple<'a> {
    items: Vec<Object<'a>>,
    depth: usize,
}

impl<'a> Tuple<'a> {
    pub(super) fn new(items: Vec<Object<'a>>) -> Result<Rc<Self>, String> {
        let items: Vec<_> = items.into_iter().map(Object::inside).collect();
        let depth = 1 + items.iter().map(Object::depth).max().unwrap_or(0);
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} tuples inside one another"));
        }
        Ok(Rc::new(Self { items, depth }))
    }

    pub(super) fn items(&self) -> &[Object<'a>] {
        &self.items
    }
}

/// The unread bytes of a pickle. It uses a length only after checking that as many bytes exist.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(|| self.short(len))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], String> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| self.short(LEN))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn short(&self, len: usize) -> String {
        format!("cut short: {} of {len} bytes are there", self.0.len())
    }

    /// A length of four bytes, then as many bytes of UTF-8.
    fn text(&mut self) -> Result<&'a str, String> {
        let len = u32::from_le_bytes(self.array()?);
        utf8(self.bytes(usize::try_from(len).map_err(|e| e.to_string())?)?)
    }

    /// UTF-8 that a newline ends.
    fn line(&mut self) -> Result<&'a str, String> {
        let len = self.0.iter().position(|&byte| byte == b'\n').ok_or("a name without its end")?;
        let line = self.bytes(len)?;
        self.bytes(1)?;
        utf8(line)
    }

    /// A length of one byte, then as many bytes of an integer in two's complement.
    fn long(&mut self) -> Result<i64, String> {
        let [len] = self.array()?;
        let bytes = self.bytes(len.into())?;
        if bytes.len() > 8 {
            return Err(format!("an integer of {len} bytes; a size has at most 8"));
        }
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
        Ok(bytes.iter().rev().fold(sign, |n, &byte| n << 8 | i64::from(byte)))
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| e.to_string())
}

// The operations that describe tensors, under Python's names.
const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
const NONE: u8 = b'N';
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BINFLOAT: u8 = b'G';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const BINUNICODE: u8 = b'X';
const GLOBAL: u8 = b'c';
const EMPTY_TUPLE: u8 = b')';
const TUPLE1: u8 = 0x85;
const TUPLE2: u8 = 0x86;
const TUPLE3: u8 = 0x87;
const TUPLE: u8 = b't';
const EMPTY_LIST: u8 = b']';
const APPEND: u8 = b'a';
const APPENDS: u8 = b'e';
const EMPTY_DICT: u8 = b'}';
const SETITEM: u8 = b's';
const SETITEMS: u8 = b'u';
const BINPERSID: u8 = b'Q';
const REDUCE: u8 = b'R';
const BUILD: u8 = b'b';

/// The object that a whole pickle describes.
pub(super) fn read(pickle: &[u8]) -> Result<Object<'_>, String> {
    let mut machine = Machine { input: Input(pickle), stack: vec![], marked: vec![], memo: BTreeMap::new() };
    loop {
        let at = pickle.len() - machine.input.0.len();
        if let Some(object) = machine.step().map_err(|reason| format!("byte {at} of data.pkl: {reason}"))? {
            return Ok(object);
        }
    }
}

struct Machine<'a> {
    input: Input<'a>,
    /// The objects above the last mark.
    stack: Vec<Object<'a>>,
    /// The objects below each mark.
    marked: Vec<Vec<Object<'a>>>,
    memo: BTreeMap<u32, Object<'a>>,
}

impl<'a> Machine<'a> {
    /// Does one operation; the last one gives the object.
    fn step(&mut self) -> Result<Option<Object<'a>>, String> {
        let [operation] = self.input.array()?;
        let object = match operation {
            STOP => return self.pop().map(Some),
            PROTO => match self.input.array()? {
                [2] => return Ok(None),
                [other] => return Err(format!("protocol {other}; torch.save writes protocol 2")),
            },
            MARK => {
                self.marked.push(std::mem::take(&mut self.stack));
                return Ok(None);
            }
            BINPUT | LONG_BINPUT => {
                let index = self.index(operation == LONG_BINPUT)?;
                let object = self.stack.last().ok_or("there is nothing to remember")?;
                self.memo.insert(index, object.clone());
                return Ok(None);
            }
            BINGET | LONG_BINGET => {
                let index = self.index(operation == LONG_BINGET)?;
                self.memo.get(&index).ok_or_else(|| format!("nothing is remembered as {index}"))?.clone()
            }
            NONE | NEWTRUE | NEWFALSE => Object::Other,
            BINFLOAT => {
                self.input.bytes(8)?;
                Object::Other
            }
            BININT => Object::Int(i32::from_le_bytes(self.input.array()?).into()),
            BININT1 => Object::Int(u8::from_le_bytes(self.input.array()?).into()),
            BININT2 => Object::Int(u16::from_le_bytes(self.input.array()?).into()),
            LONG1 => Object::Int(self.input.long()?),
            BINUNICODE => Object::Text(self.input.text()?),
            GLOBAL => Object::Global(Global { module: self.input.line()?, name: self.input.line()? }),
            EMPTY_TUPLE => Object::Tuple(Tuple::new(vec![])?),
            TUPLE1 => Object::Tuple(Tuple::new(self.pop_last(1)?)?),
            TUPLE2 => Object::Tuple(Tuple::new(self.pop_last(2)?)?),
            TUPLE3 => Object::Tuple(Tuple::new(self.pop_last(3)?)?),
            TUPLE => Object::Tuple(Tuple::new(self.pop_mark()?)?),
            EMPTY_LIST => Object::List,
            APPEND => self.pop_last(1).and_then(|_| self.pop_list())?,
            APPENDS => self.pop_mark().and_then(|_| self.pop_list())?,
            EMPTY_DICT => Object::Dict(Rc::default()),
            SETITEM => self.pop_last(2).and_then(|items| self.pop_dict(items))?,
            SETITEMS => self.pop_mark().and_then(|items| self.pop_dict(items))?,
            // Attributes; a state dictionary has `_metadata`, which says nothing of its tensors.
            BUILD => self.pop().and_then(|_| self.pop_dict(vec![]))?,
            BINPERSID => Object::Persistent(self.pop_tuple()?),
            REDUCE => self.reduce()?,
            other => return Err(format!("operation {other:#04x} is not one that torch.save writes")),
        };
        self.stack.push(object);
        Ok(None)
    }

    /// The index into the memo.
    fn index(&mut self, long: bool) -> Result<u32, String> {
        if long { self.input.array().map(u32::from_le_bytes) } else { self.input.array().map(|[i]| i.into()) }
    }

    fn pop(&mut self) -> Result<Object<'a>, String> {
        self.stack.pop().ok_or_else(|| "an object is missing before it".into())
    }

    fn pop_last(&mut self, count: usize) -> Result<Vec<Object<'a>>, String> {
        let start = self.stack.len().checked_sub(count).ok_or("an object is missing before it")?;
        Ok(self.stack.split_off(start))
    }

    /// The objects above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Object<'a>>, String> {
        let below = self.marked.pop().ok_or("a mark is missing before it")?;
        Ok(std::mem::replace(&mut self.stack, below))
    }

    fn pop_tuple(&mut self) -> Result<Rc<Tuple<'a>>, String> {
        match self.pop()? {
            Object::Tuple(tuple) => Ok(tuple),
            _ => Err("a tuple is missing before it".into()),
        }
    }

    fn pop_list(&mut self) -> Result<Object<'a>, String> {
        match self.pop()? {
            Object::List => Ok(Object::List),
            _ => Err("a list is missing before it".into()),
        }
    }

    /// The dictionary below, with `items` as further keys and values.
    fn pop_dict(&mut self, items: Vec<Object<'a>>) -> Result<Object<'a>, String> {
        let Object::Dict(dict) = self.pop()? else { return Err("a dictionary is missing before it".into()) };
        let mut items = items.into_iter().map(Object::inside);
        while let Some(key) = items.next() {
            dict.borrow_mut().push((key, items.next().ok_or("a key without its value")?));
        }
        Ok(Object::Dict(dict))
    }

    fn reduce(&mut self) -> Result<Object<'a>, String> {
        let args = self.pop_tuple()?;
        let Object::Global(function) = self.pop()? else {
            return Err("a call of something that is not a name".into());
        };
        Ok(match (function.module, function.name, args.items()) {
            ("collections", "OrderedDict", []) => Object::Dict(Rc::default()),
            _ => Object::Call(function, args),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state dictionary with one tensor, attributes, and every operation; Python's pickle also reads it.
    fn sample() -> Vec<u8> {
        let parts: [&[u8]; 14] = [
            b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\x01(X\x06\0\0\0weightq\x02",
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n",
            b"X\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ", // the storage's description
            b"\x8a\x00K\x03M\x02\0\x86K\x02J\x01\0\0\0\x86\x89h\0)RtR", // offset, shape, strides, ..
            b"X\x01\0\0\0a]K\x01a(\x88Neu",         // a list, filled in two ways
            b"X\x01\0\0\0bG\0\0\0\0\0\0\0\0s",      // a float
            b"X\x01\0\0\0cN\x85s",
            b"X\x01\0\0\0dK\x01K\x02K\x03\x87s",
            b"X\x01\0\0\0eh\x01s", // the dictionary itself
            b"r\x2c\x01\0\0X\x01\0\0\0fj\x2c\x01\0\0s",
            b"X\x01\0\0\0g\x8a\x01\xffs",
            b"X\x01\0\0\0h\x8a\x08\0\0\0\0\0\0\0\x80s",
            b"}X\x09\0\0\0_metadatah\x01sb",
            b".",
        ];
        parts.concat()
    }

    #[test]
    fn reads_every_operation() -> Result<(), String> {
        let pickle = sample();
        let Object::Dict(entries) = read(&pickle)? else { return Err("a dictionary".into()) };
        let entries = entries.borrow();
        assert_eq!(entries.len(), 9);
        let values: Vec<_> = entries.iter().map(|(_, value)| value).collect();
        let [Object::Call(function, args), Object::List, Object::Other, rest @ ..] = &values[..] else {
            return Err("a tensor, a list, a float".into());
        };
        assert_eq!(function.to_string(), "torch._utils._rebuild_tensor_v2");
        let [Object::Persistent(_), Object::Int(0), Object::Tuple(_), ..] = args.items() else {
            return Err("storage, offset, shape".into());
        };
        let [Object::Tuple(one), Object::Tuple(three), Object::Other, Object::Other, longs @ ..] = rest
        else {
            return Err("tuples, and the dictionary inside itself".into());
        };
        assert_eq!((one.items().len(), three.items().len()), (1, 3));
        assert!(matches!(longs, [Object::Int(-1), Object::Int(i64::MIN)]));
        Ok(())
    }

    #[test]
    fn integers_are_in_twos_complement() -> Result<(), String> {
        for (bytes, expected) in
            [(&[0x7f][..], 127), (&[0x80], -128), (&[0x80, 0], 128), (&[0, 0x80], -32768), (&[0xff], -1)]
        {
            let pickle = [&[LONG1, u8::try_from(bytes.len()).expect("short")], bytes, &[STOP]].concat();
            assert!(matches!(read(&pickle)?, Object::Int(n) if n == expected), "{bytes:?}");
        }
        Ok(())
    }

    #[track_caller]
    fn assert_refused(pickle: &[u8], part: &str) {
        let message = read(pickle).err().unwrap_or_else(|| format!("{pickle:?} is read"));
        assert!(message.contains(part), "{message}");
    }

    #[test]
    fn a_pickle_cut_anywhere_is_refused() {
        let pickle = sample();
        (0..pickle.len()).for_each(|len| assert_refused(&pickle[..len], "byte"));
    }

    #[test]
    fn doubling_costs_pointers() -> Result<(), String> {
        let mut pickle = b"\x80\x02)q\0".to_vec();
        for i in 0..60 {
            pickle.extend([b'h', i, b'h', i, TUPLE2, b'q', i + 1]);
        }
        pickle.push(STOP);
        let Object::Tuple(pair) = read(&pickle)? else { return Err("a pair".into()) };
        let [Object::Tuple(left), Object::Tuple(right)] = pair.items() else { return Err("two".into()) };
        assert!(Rc::ptr_eq(left, right));
        Ok(())
    }

    #[test]
    fn nesting_is_bounded_whatever_nests() {
        let tuples = |count| [b")", &vec![TUPLE1; count][..], b"."].concat();
        assert!(read(&tuples(63)).is_ok());
        for count in [64, 3_000_000] {
            assert_refused(&tuples(count), "byte 64 of data.pkl: more than 64 tuples inside one another");
        }
        assert_refused(&[&b"cm\nf\n".repeat(99)[..], b")", &b"R\x85".repeat(99)].concat(), "more than 64");
        assert_refused(&[b")", &b"Q\x85".repeat(99)[..]].concat(), "more than 64");
        // Each tuple holds the one before and an empty one.
        assert_refused(&[b")", &b")\x86".repeat(99)[..], b"."].concat(), "more than 64");
    }

    #[test]
    fn a_length_beyond_the_end_is_refused() {
        assert_refused(
            b"X\xff\xff\xff\xffabc",
            "byte 0 of data.pkl: cut short: 3 of 4294967295 bytes are there",
        );
        assert_refused(b"\x80\x02\x8a\xff\x01", "byte 2 of data.pkl: cut short: 1 of 255 bytes are there");
        for len in [9, 255] {
            let long = [&[LONG1, len][..], &[1; 255][..usize::from(len)]].concat();
            assert_refused(&long, &format!("an integer of {len} bytes; a size has at most 8"));
        }
    }

    #[test]
    fn what_torch_save_does_not_write_is_refused() {
        assert_refused(b"\x80\x04", "protocol 4");
        assert_refused(b"\x80\x02\x93", "byte 2 of data.pkl: operation 0x93");
        for pickle in
            [&b"."[..], b"(.", b"t", b"q\0", b"N\x86", b")R", b"N)R", b"NQ", b"NNa", b"NNNs", b"NNb", b"}(Nu"]
        {
            assert_refused(pickle, "byte");
        }
    }
}
