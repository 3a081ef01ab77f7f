//! Every operation, and what is refused.

use super::*;

fn root(pickle: &[u8]) -> Result<Object<'_>, String> {
    read(pickle, "data.pkl").map(|read| read.root)
}

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
    let read = read(&pickle, "data.pkl")?;
    assert_eq!((read.len, read.outside.len()), (pickle.len(), 1));
    let entries = read.dict(&read.root).ok_or("a dictionary")?;
    assert_eq!(entries.len(), 9);
    let values: Vec<_> = entries.iter().map(|(_, value)| value).collect();
    let [Object::Call(function, args), Object::List(_), Object::Other, rest @ ..] = &values[..] else {
        return Err("a tensor, a list, a float".into());
    };
    assert_eq!(function.to_string(), "torch._utils._rebuild_tensor_v2");
    let [Object::Persistent(_), Object::Int(0), Object::Tuple(_), ..] = args.items() else {
        return Err("storage, offset, shape".into());
    };
    let [Object::Tuple(one), Object::Tuple(three), Object::Dict(_), Object::Dict(_), longs @ ..] = rest
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
        assert!(matches!(root(&pickle)?, Object::Int(n) if n == expected), "{bytes:?}");
    }
    Ok(())
}

#[track_caller]
fn assert_refused(pickle: &[u8], part: &str) {
    let message = root(pickle).err().unwrap_or_else(|| format!("{pickle:?} is read"));
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
    let Object::Tuple(pair) = root(&pickle)? else { return Err("a pair".into()) };
    let [Object::Tuple(left), Object::Tuple(right)] = pair.items() else { return Err("two".into()) };
    assert!(Rc::ptr_eq(left, right));
    Ok(())
}

#[test]
fn nesting_is_bounded_whatever_nests() {
    let tuples = |count| [b")", &vec![TUPLE1; count][..], b"."].concat();
    assert!(root(&tuples(63)).is_ok());
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
    assert_refused(b"X\xff\xff\xff\xffabc", "byte 0 of data.pkl: cut short: 3 of 4294967295 bytes are there");
    assert_refused(b"\x80\x02\x8a\xff\x01", "byte 2 of data.pkl: cut short: 1 of 255 bytes are there");
    let long = [&[LONG1, 9][..], &[1; 9], b"."].concat();
    assert!(matches!(root(&long), Ok(Object::Long(bytes)) if bytes == [1; 9]));
}

#[test]
fn what_torch_save_does_not_write_is_refused() {
    assert_refused(b"\x80\x06", "protocol 6");
    assert_refused(b"\x80\x01", "protocol 1");
    assert_refused(b"\x80\x02\xff", "byte 2 of data.pkl: operation 0xff");
    for pickle in
        [&b"."[..], b"(.", b"t", b"q\0", b"N\x86", b")R", b"N)R", b"NQ", b"NNa", b"NNNs", b"NNb", b"}(Nu"]
    {
        assert_refused(pickle, "byte");
    }
}

/// Python's pickle writes these with protocols 3 to 5: frames, short texts, names from the stack, remembering in order.
#[test]
fn later_protocols_are_read() -> Result<(), String> {
    for protocol in 3..=5 {
        let pickle = [
            &[PROTO, protocol, FRAME][..],
            &[0; 8],
            b"\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94(\x8c\x01ah\x00\x8c\x01b\x8b\x01\0\0\0\x07u.",
        ]
        .concat();
        let read = read(&pickle, "data.pkl")?;
        let entries = read.dict(&read.root).ok_or("a dictionary")?;
        let [(Object::Text("a"), Object::Text("collections")), (Object::Text("b"), Object::Int(7))] =
            &entries[..]
        else {
            return Err("other entries".into());
        };
    }
    Ok(())
}

/// Objects of other classes are only named: deques, dictionaries of a class, sets, bytes, whole modules.
#[test]
fn objects_of_other_classes_are_skipped() -> Result<(), String> {
    for pickle in [
        &b"\x80\x02cm\nC\n)\x81}(U\x01ccm\nD\n)Rub."[..],
        b"\x80\x02ccollections\ndeque\n)R(K\x01K\x02e.",
        b"\x80\x04cm\nC\n)}\x92.",
        b"\x80\x04\x8f(K\x01\x90.",
        b"\x80\x04(K\x01\x91.",
        b"\x80\x03C\x02\xff\xff.",
        b"\x80\x03B\x02\0\0\0\xff\xff.",
        b"\x80\x05\x96\x02\0\0\0\0\0\0\0\xff\xff.",
        b"\x80\x02T\x02\0\0\0\xff\xff.",
        b"\x80\x02K\x01(K\x02K\x031.",
        b"\x80\x02K\x0120.",
    ] {
        root(pickle).map(drop).map_err(|e| format!("{pickle:?}: {e}"))?;
    }
    // A dictionary of a class has its items.
    let read = read(b"\x80\x02cm\nC\n)\x81(U\x01aK\x01u.", "data.pkl")?;
    assert_eq!(read.dict(&read.root).ok_or("items")?.len(), 1);
    assert!(matches!(read.root, Object::Instance(class, _) if class.to_string() == "m.C"));
    Ok(())
}
