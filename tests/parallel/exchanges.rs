//! The exchanges that every group must do.

use gpt2_parallel::{Error, Fact, Group};

/// The byte number `i` that rank `from` sends to rank `to`.
fn byte(from: usize, to: usize, i: usize) -> u8 {
    u8::try_from((from * 31 + to * 17 + i * 7) % 251).expect("below 251")
}

/// Runs every exchange, with parts of about `length` bytes; panics where a byte is wrong.
pub(crate) fn every_exchange(group: &dyn Group, length: usize) {
    let rank = group.rank();
    let size = group.size();
    assert!(rank < size);
    group.barrier().expect("barrier");

    for root in 0..size {
        let mut data: Vec<u8> = (0..length).map(|i| byte(rank, root, i)).collect();
        group.broadcast(root, &mut data).expect("broadcast");
        assert!(data.iter().enumerate().all(|(i, b)| *b == byte(root, root, i)), "broadcast from {root}");
    }

    // Rank 1 has nothing to say, the others more the higher they are.
    let lengths: Vec<usize> = (0..size).map(|r| if r == 1 { 0 } else { length + r }).collect();
    let mine: Vec<u8> = (0..lengths[rank]).map(|i| byte(rank, 0, i)).collect();
    let mut all = vec![0; lengths.iter().sum()];
    group.all_gather(&mine, &mut all, &lengths).expect("all_gather");
    let expected: Vec<u8> = (0..size).flat_map(|r| (0..lengths[r]).map(move |i| byte(r, 0, i))).collect();
    assert!(all == expected, "all_gather");
    assert_eq!(
        group.gather_bytes(&mine).expect("gather_bytes").concat(),
        expected,
        "lengths that only their own rank knows"
    );

    // Rank f sends f + t parts of its own to rank t, and nothing from 0 to 0.
    let between = |from: usize, to: usize| (from + to) * length / 2;
    let out: Vec<usize> = (0..size).map(|to| between(rank, to)).collect();
    let from: Vec<usize> = (0..size).map(|from| between(from, rank)).collect();
    let parts: Vec<u8> = (0..size).flat_map(|to| (0..out[to]).map(move |i| byte(rank, to, i))).collect();
    let mut received = vec![0; from.iter().sum()];
    group.all_to_all(&parts, &out, &mut received, &from).expect("all_to_all");
    let expected: Vec<u8> = (0..size).flat_map(|f| (0..from[f]).map(move |i| byte(f, rank, i))).collect();
    assert!(received == expected, "all_to_all");

    // Some ranks add nothing, or a single number.
    for length in [length, 0, 1, size, size + 1] {
        rank_order(group, length);
    }
    assert_eq!(group.gather_one(rank as f64 / 3.0).expect("gather_one").len(), size);
    assert!(group.any(rank + 1 == size).expect("any") && !group.any(false).expect("any"));
    let text = group.broadcast_bytes(if rank == 0 { b"hello".to_vec() } else { vec![] });
    assert_eq!(text.expect("broadcast_bytes"), b"hello");

    let fact = |value: String| Fact { what: "shoe size".into(), value, remedy: "change shoes" };
    group.agree::<Error>(|| Ok(vec![fact("42".into())])).expect("all agree");
    if size > 1 {
        let own = (42 + rank / (size - 1)).to_string(); // only the last rank differs
        let error =
            group.agree::<Error>(|| Ok(vec![fact("a".into()), fact(own)])).expect_err("43").to_string();
        let last = size - 1;
        let mut facts = vec![fact("a".into())];
        facts.extend((rank == last).then(|| fact("b".into())));
        let longer = group.agree::<Error>(|| Ok(facts)).expect_err("one more").to_string();
        assert!(longer.contains("another list of settings than rank 0: 2 facts, not 1 facts"), "{longer}");
        assert_eq!(error, format!("rank {last} has another shoe size than rank 0: 43, not 42; change shoes"));
    }
}

/// The sum is that of rank order, bit for bit: these values give another in any other order.
fn rank_order(group: &dyn Group, length: usize) {
    let value = |rank: usize, i: usize| {
        let sizes = [1e8f32, 1.0, -1e8, 1.5];
        sizes[rank % 4] + (i % 13) as f32 * 0.37 / (rank + 1) as f32
    };
    let mut values: Vec<f32> = (0..length).map(|i| value(group.rank(), i)).collect();
    group.all_reduce(&mut values).expect("all_reduce");
    for (i, sum) in values.iter().enumerate() {
        let expected = (1..group.size()).fold(value(0, i), |sum, rank| sum + value(rank, i));
        assert_eq!(sum.to_bits(), expected.to_bits(), "number {i}");
    }
    let lengths = vec![3; group.size()];
    let short = group.all_gather(&[1, 2, 3], &mut vec![0; 3 * group.size() + 1], &lengths);
    assert!(matches!(short, Err(Error::Size { .. })), "{short:?}");
}
