//! Reads the pickle that `torch.save` writes for a state dictionary, in protocols 2 to 5. It runs nothing: a global is a name,
//! and a call is only recorded. What it reads are [`Object`]s; shared ones stay shared, so that a copy costs one pointer.
//!
//! Any input takes one pass, with time and memory in proportion.

use super::object::{Entries, Global, Object, Pickle, Tuple};
use std::collections::BTreeMap;
use std::rc::Rc;

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

    /// A length of N bytes, then as many bytes.
    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], String> {
        let bytes: [u8; N] = self.array()?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&bytes);
        let len = usize::try_from(u64::from_le_bytes(wide)).map_err(|e| e.to_string())?;
        self.bytes(len)
    }

    /// A length of N bytes, then as many bytes of UTF-8.
    fn text<const N: usize>(&mut self) -> Result<Object<'a>, String> {
        Ok(Object::Text(utf8(self.sized::<N>()?)?))
    }

    /// UTF-8 that a newline ends.
    fn line(&mut self) -> Result<&'a str, String> {
        let len = self.0.iter().position(|&byte| byte == b'\n').ok_or("a name without its end")?;
        let line = self.bytes(len)?;
        self.bytes(1)?;
        utf8(line)
    }

    /// A length of N bytes, then as many bytes of an integer in two's complement.
    fn long<const N: usize>(&mut self) -> Result<Object<'a>, String> {
        let bytes = self.sized::<N>()?;
        if bytes.len() > 8 {
            return Ok(Object::Long(bytes));
        }
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
        Ok(Object::Int(bytes.iter().rev().fold(sign, |n, &byte| n << 8 | i64::from(byte))))
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| e.to_string())
}

/// The protocols that are read. Protocol 2 is `torch.save`'s own.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

// The operations, under Python's names.
const PROTO: u8 = 0x80;
const FRAME: u8 = 0x95;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const POP: u8 = b'0';
const POP_MARK: u8 = b'1';
const DUP: u8 = b'2';
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';
const MEMOIZE: u8 = 0x94;
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
const LONG4: u8 = 0x8b;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BINUNICODE8: u8 = 0x8d;
const SHORT_BINSTRING: u8 = b'U';
const BINSTRING: u8 = b'T';
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
const BINBYTES8: u8 = 0x8e;
const BYTEARRAY8: u8 = 0x96;
const GLOBAL: u8 = b'c';
const STACK_GLOBAL: u8 = 0x93;
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
const EMPTY_SET: u8 = 0x8f;
const ADDITEMS: u8 = 0x90;
const FROZENSET: u8 = 0x91;
const BINPERSID: u8 = b'Q';
const REDUCE: u8 = b'R';
const NEWOBJ: u8 = 0x81;
const NEWOBJ_EX: u8 = 0x92;
const BUILD: u8 = b'b';

/// The values that the first pickle in these bytes describes; `name` is its name in messages.
pub(super) fn read<'a>(bytes: &'a [u8], name: &str) -> Result<Pickle<'a>, String> {
    let mut machine = Machine::new(bytes);
    loop {
        let at = bytes.len() - machine.input.0.len();
        let end = machine.step().map_err(|reason| format!("byte {at} of {name}: {reason}"))?;
        if let Some(root) = end {
            let Machine { input, dicts, lists, outside, .. } = machine;
            return Ok(Pickle { root, dicts, lists, outside, len: bytes.len() - input.0.len() });
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
    dicts: Vec<Entries<'a>>,
    lists: Vec<Vec<Object<'a>>>,
    outside: Vec<Rc<Tuple<'a>>>,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let (stack, marked, memo) = Default::default();
        let (dicts, lists, outside) = Default::default();
        Self { input: Input(bytes), stack, marked, memo, dicts, lists, outside }
    }

    /// Does one operation; the last one gives the object.
    fn step(&mut self) -> Result<Option<Object<'a>>, String> {
        let [operation] = self.input.array()?;
        if operation == STOP {
            return self.pop().map(Some);
        }
        if !self.moves(operation)? {
            let object = match self.number_or_text(operation)? {
                Some(object) => object,
                None => self.compound(operation)?,
            };
            self.stack.push(object);
        }
        Ok(None)
    }

    /// Does an operation that makes no object; false if it is another one.
    fn moves(&mut self, operation: u8) -> Result<bool, String> {
        match operation {
            PROTO => match self.input.array()? {
                [protocol] if PROTOCOLS.contains(&protocol) => {}
                [other] => {
                    return Err(format!("protocol {other}; expected 2, as torch.save writes it, to 5"));
                }
            },
            FRAME => drop(self.input.bytes(8)?),
            MARK => self.marked.push(std::mem::take(&mut self.stack)),
            POP if self.stack.is_empty() => drop(self.pop_mark()?),
            POP => drop(self.pop()?),
            POP_MARK => drop(self.pop_mark()?),
            BINPUT | LONG_BINPUT | MEMOIZE => {
                let index = match operation {
                    MEMOIZE => u32::try_from(self.memo.len()).map_err(|e| e.to_string())?,
                    put => self.index(put == LONG_BINPUT)?,
                };
                let top = self.stack.last().ok_or("nothing to remember")?.clone();
                self.memo.insert(index, top);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A number, a text or a name.
    fn number_or_text(&mut self, operation: u8) -> Result<Option<Object<'a>>, String> {
        let input = &mut self.input;
        Ok(Some(match operation {
            NONE => Object::None,
            NEWTRUE | NEWFALSE => Object::Bool(operation == NEWTRUE),
            BINFLOAT => {
                input.bytes(8)?;
                Object::Other
            }
            BININT => Object::Int(i32::from_le_bytes(input.array()?).into()),
            BININT1 => Object::Int(u8::from_le_bytes(input.array()?).into()),
            BININT2 => Object::Int(u16::from_le_bytes(input.array()?).into()),
            LONG1 => input.long::<1>()?,
            LONG4 => input.long::<4>()?,
            SHORT_BINUNICODE => input.text::<1>()?,
            BINUNICODE => input.text::<4>()?,
            BINUNICODE8 => input.text::<8>()?,
            // Python 2's strings may be text or bytes.
            SHORT_BINSTRING => text_or_bytes(input.sized::<1>()?),
            BINSTRING => text_or_bytes(input.sized::<4>()?),
            SHORT_BINBYTES => opaque(input.sized::<1>()?),
            BINBYTES => opaque(input.sized::<4>()?),
            BINBYTES8 | BYTEARRAY8 => opaque(input.sized::<8>()?),
            GLOBAL => Object::Global(Global { module: input.line()?, name: input.line()? }),
            _ => return Ok(None),
        }))
    }

    /// An object that is made of others.
    fn compound(&mut self, operation: u8) -> Result<Object<'a>, String> {
        Ok(match operation {
            BINGET | LONG_BINGET => {
                let index = self.index(operation == LONG_BINGET)?;
                self.memo.get(&index).ok_or_else(|| format!("nothing is remembered as {index}"))?.clone()
            }
            DUP => self.stack.last().ok_or("an object is missing before it")?.clone(),
            STACK_GLOBAL => match &self.pop_last(2)?[..] {
                [Object::Text(module), Object::Text(name)] => Object::Global(Global { module, name }),
                _ => return Err("a name that is no text".into()),
            },
            EMPTY_TUPLE => Object::Tuple(Tuple::new(vec![])?),
            TUPLE1 => Object::Tuple(Tuple::new(self.pop_last(1)?)?),
            TUPLE2 => Object::Tuple(Tuple::new(self.pop_last(2)?)?),
            TUPLE3 => Object::Tuple(Tuple::new(self.pop_last(3)?)?),
            TUPLE => Object::Tuple(Tuple::new(self.pop_mark()?)?),
            EMPTY_LIST => {
                self.lists.push(vec![]);
                Object::List(self.lists.len() - 1)
            }
            APPEND => self.pop_last(1).and_then(|items| self.append(items))?,
            APPENDS => self.pop_mark().and_then(|items| self.append(items))?,
            EMPTY_DICT => Object::Dict(self.new_dict()),
            SETITEM => self.pop_last(2).and_then(|items| self.set(items))?,
            SETITEMS => self.pop_mark().and_then(|items| self.set(items))?,
            EMPTY_SET => Object::Other,
            ADDITEMS => self.pop_mark().and_then(|_| self.pop())?,
            FROZENSET => self.pop_mark().map(|_| Object::Other)?,
            // Attributes; a state dictionary has `_metadata`, which says nothing of its tensors.
            BUILD => match self.pop().and_then(|_| self.pop())? {
                made @ (Object::Dict(_) | Object::Call(..) | Object::Instance(..)) => made,
                _ => return Err("an object with attributes is missing before it".into()),
            },
            BINPERSID => {
                let outside = self.pop_tuple()?;
                self.outside.push(Rc::clone(&outside));
                Object::Persistent(outside)
            }
            REDUCE => self.reduce()?,
            NEWOBJ => self.pop_tuple().and_then(|_| self.instance())?,
            NEWOBJ_EX => self.pop_last(2).and_then(|_| self.instance())?,
            other => return Err(format!("operation {other:#04x} is not one of a state dictionary")),
        })
    }

    fn new_dict(&mut self) -> usize {
        self.dicts.push(vec![]);
        self.dicts.len() - 1
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

    /// The list below, with further items. Objects of other classes, such as a deque, take items too.
    fn append(&mut self, items: Vec<Object<'a>>) -> Result<Object<'a>, String> {
        let list = self.pop()?;
        match list {
            Object::List(place) => self.lists[place].extend(items),
            Object::Call(..) | Object::Instance(..) => {}
            _ => return Err("a list is missing before it".into()),
        }
        Ok(list)
    }

    /// The dictionary below, with `items` as further keys and values.
    fn set(&mut self, items: Vec<Object<'a>>) -> Result<Object<'a>, String> {
        let dict = self.pop()?;
        let place = match dict {
            Object::Dict(place) | Object::Instance(_, place) => place,
            Object::Call(..) => return Ok(dict),
            _ => return Err("a dictionary is missing before it".into()),
        };
        let mut items = items.into_iter();
        while let Some(key) = items.next() {
            self.dicts[place].push((key, items.next().ok_or("a key without its value")?));
        }
        Ok(dict)
    }

    fn reduce(&mut self) -> Result<Object<'a>, String> {
        let args = self.pop_tuple()?;
        Ok(match self.pop()? {
            Object::Global(Global { module: "collections", name: "OrderedDict" })
                if args.items().is_empty() =>
            {
                Object::Dict(self.new_dict())
            }
            Object::Global(Global { module: "collections", name: "defaultdict" }) => {
                Object::Dict(self.new_dict())
            }
            Object::Global(function) => Object::Call(function, args),
            _ => return Err("a call of something that is not a name".into()),
        })
    }

    /// An object of the class below.
    fn instance(&mut self) -> Result<Object<'a>, String> {
        match self.pop()? {
            Object::Global(class) => Ok(Object::Instance(class, self.new_dict())),
            _ => Err("an object of something that is not a class".into()),
        }
    }
}

fn text_or_bytes(bytes: &[u8]) -> Object<'_> {
    std::str::from_utf8(bytes).map_or(Object::Other, Object::Text)
}

fn opaque(_: &[u8]) -> Object<'_> {
    Object::Other
}

#[cfg(test)]
mod tests;
