//! Reads the pickle that `torch.save` writes for a state dictionary: the part of protocol 2 that describes
//! tensors. It runs nothing: a global is a name, and a call is only recorded.
//!
//! Any input takes one pass, with time and memory in proportion.

use super::input::Input;
use super::object::{Global, Object, Tuple};
use super::op;
use std::collections::BTreeMap;
use std::rc::Rc;

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
            op::STOP => return self.pop().map(Some),
            op::PROTO => match self.input.array()? {
                [2] => return Ok(None),
                [other] => return Err(format!("protocol {other}; torch.save writes protocol 2")),
            },
            op::MARK => {
                self.marked.push(std::mem::take(&mut self.stack));
                return Ok(None);
            }
            op::BINPUT | op::LONG_BINPUT => {
                let index = self.index(operation == op::LONG_BINPUT)?;
                let object = self.stack.last().ok_or("there is nothing to remember")?;
                self.memo.insert(index, object.clone());
                return Ok(None);
            }
            op::BINGET | op::LONG_BINGET => {
                let index = self.index(operation == op::LONG_BINGET)?;
                self.memo.get(&index).ok_or_else(|| format!("nothing is remembered as {index}"))?.clone()
            }
            op::NONE | op::NEWTRUE | op::NEWFALSE => Object::Other,
            op::BINFLOAT => {
                self.input.bytes(8)?;
                Object::Other
            }
            op::BININT => Object::Int(i32::from_le_bytes(self.input.array()?).into()),
            op::BININT1 => Object::Int(u8::from_le_bytes(self.input.array()?).into()),
            op::BININT2 => Object::Int(u16::from_le_bytes(self.input.array()?).into()),
            op::LONG1 => Object::Int(self.input.long()?),
            op::BINUNICODE => Object::Text(self.input.text()?),
            op::GLOBAL => Object::Global(Global { module: self.input.line()?, name: self.input.line()? }),
            op::EMPTY_TUPLE => Object::Tuple(Tuple::new(vec![])?),
            op::TUPLE1 => Object::Tuple(Tuple::new(self.pop_last(1)?)?),
            op::TUPLE2 => Object::Tuple(Tuple::new(self.pop_last(2)?)?),
            op::TUPLE3 => Object::Tuple(Tuple::new(self.pop_last(3)?)?),
            op::TUPLE => Object::Tuple(Tuple::new(self.pop_mark()?)?),
            op::EMPTY_LIST => Object::List,
            op::APPEND => self.pop_last(1).and_then(|_| self.pop_list())?,
            op::APPENDS => self.pop_mark().and_then(|_| self.pop_list())?,
            op::EMPTY_DICT => Object::Dict(Rc::default()),
            op::SETITEM => self.pop_last(2).and_then(|items| self.pop_dict(items))?,
            op::SETITEMS => self.pop_mark().and_then(|items| self.pop_dict(items))?,
            // Attributes; a state dictionary has `_metadata`, which says nothing of its tensors.
            op::BUILD => self.pop().and_then(|_| self.pop_dict(vec![]))?,
            op::BINPERSID => Object::Persistent(self.pop_tuple()?),
            op::REDUCE => self.reduce()?,
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
        let Object::Global(function) = self.pop()? else { return Err("a call of what is no name".into()) };
        Ok(match (function.module, function.name, args.items()) {
            ("collections", "OrderedDict", []) => Object::Dict(Rc::default()),
            _ => Object::Call(function, args),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state dictionary with one tensor, attributes, and every operation; Python's pickle reads it, too.
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
            let pickle =
                [&[op::LONG1, u8::try_from(bytes.len()).expect("short")], bytes, &[op::STOP]].concat();
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
            pickle.extend([b'h', i, b'h', i, op::TUPLE2, b'q', i + 1]);
        }
        pickle.push(op::STOP);
        let Object::Tuple(pair) = read(&pickle)? else { return Err("a pair".into()) };
        let [Object::Tuple(left), Object::Tuple(right)] = pair.items() else { return Err("two".into()) };
        assert!(Rc::ptr_eq(left, right));
        Ok(())
    }

    #[test]
    fn nesting_is_bounded_whatever_nests() {
        let tuples = |count| [b")", &vec![op::TUPLE1; count][..], b"."].concat();
        assert!(read(&tuples(63)).is_ok());
        for count in [64, 3_000_000] {
            assert_refused(&tuples(count), "byte 64 of data.pkl: more than 64 tuples inside one another");
        }
        assert_refused(&[&b"cm\nf\n".repeat(99)[..], b")", &b"R\x85".repeat(99)].concat(), "more than 64");
        assert_refused(&[b")", &b"Q\x85".repeat(99)[..]].concat(), "more than 64");
    }

    #[test]
    fn a_length_beyond_the_end_is_refused() {
        assert_refused(
            b"X\xff\xff\xff\xffabc",
            "byte 0 of data.pkl: cut short: 3 of 4294967295 bytes are there",
        );
        assert_refused(b"\x80\x02\x8a\xff\x01", "byte 2 of data.pkl: cut short: 1 of 255 bytes are there");
        assert_refused(&[&b"\x8a\xff"[..], &[1; 255]].concat(), "an integer of 255 bytes");
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
