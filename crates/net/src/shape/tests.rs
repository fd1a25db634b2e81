use std::time::Duration;

use proptest::prelude::*;

use super::{Shape, ShapeError, Shaper};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn shapes_are_read() {
    let shape: Shape = "delay=10ms,jitter=2ms,rate=100mbit,loss=0.1%,seed=7".parse().unwrap();
    let expected = Shape { delay: ms(10), jitter: ms(2), rate: Some(100_000_000), loss_ppm: 1000, seed: 7 };
    assert_eq!(shape, expected);
    assert_eq!("".parse(), Ok(Shape::default()));
    assert_eq!("delay=1.5s, rate=2.5gbit".parse::<Shape>().unwrap().delay, ms(1500));
}

#[test]
fn text_that_is_no_shape_is_refused_with_a_reason() {
    let refused = |text: &str| text.parse::<Shape>().unwrap_err();
    assert_eq!(refused("slow"), ShapeError::NotAPair("slow".into()));
    assert_eq!(refused("lag=1ms"), ShapeError::UnknownKey("lag".into()));
    assert_eq!(refused("delay=1ms,delay=2ms"), ShapeError::Twice("delay"));
    assert_eq!(refused("delay=1ms,jitter=2ms"), ShapeError::JitterAboveDelay);
    for bad in [
        "delay=10",
        "delay=ms",
        "delay=-1ms",
        "delay=1h",
        "delay=61s",
        "delay=",
        "delay=1..5ms",
        "rate=0mbit",
        "rate=9",
        "rate=0.1bit",
        "rate=9999gbit",
        "loss=1",
        "loss=101%",
        "seed=x",
        "seed=-1",
    ] {
        assert!(matches!(refused(bad), ShapeError::BadValue { .. }), "{bad}");
    }
    assert_eq!(refused("rate=fast").to_string(), "rate=fast is not a rate above 0, such as 100mbit");
}

#[test]
fn bytes_leave_one_after_another_and_arrive_after_the_delay() {
    let shape = Shape { delay: ms(10), rate: Some(8_000_000), ..Shape::default() };
    let mut shaper = Shaper::new(shape);
    assert_eq!(shaper.send(ms(0), 1000), ms(11));
    assert_eq!(shaper.free_at(), ms(1));
    assert_eq!(shaper.send(ms(0), 2000), ms(13));
    assert_eq!(shaper.send(ms(100), 1000), ms(111));
}

#[test]
fn a_lost_packet_holds_up_all_that_follows() {
    let mut shaper = Shaper::new(Shape { delay: ms(10), loss_ppm: 1_000_000, ..Shape::default() });
    assert_eq!(shaper.send(ms(0), 100), ms(10 + 200 + 20));
    shaper.shape.loss_ppm = 0;
    assert_eq!(shaper.send(ms(1), 100), ms(230));
    assert_eq!(shaper.send(ms(300), 100), ms(310));
}

#[test]
fn loss_is_as_frequent_as_asked() {
    let mut shaper = Shaper::new(Shape { loss_ppm: 10_000, ..Shape::default() });
    let stalls = (0..100_000).filter(|&i| shaper.send(ms(1000 * i), 1448) > ms(1000 * i)).count();
    assert!((900..1100).contains(&stalls), "{stalls} of 100,000 at 1 %");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let shape = Shape { delay: ms(10), jitter: ms(5), loss_ppm: 10_000, seed: 3, ..Shape::default() };
    let run = |shape| {
        let mut shaper = Shaper::new(shape);
        (0..1000).map(|i| shaper.send(ms(i), 1000)).collect::<Vec<_>>()
    };
    assert_eq!(run(shape), run(shape));
    assert_ne!(run(shape), run(Shape { seed: 4, ..shape }));
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let rate = proptest::option::of(1_u64..1_000_000_000_000);
    (0_u64..60_000_000, 0.0..=1.0_f64, rate, 0..=1_000_000_u32, any::<u64>()).prop_map(
        |(delay, share, rate, loss_ppm, seed)| Shape {
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros((delay as f64 * share) as u64),
            rate,
            loss_ppm,
            seed,
        },
    )
}

proptest! {
    #[test]
    fn shapes_survive_their_text_form(shape in any_shape()) {
        prop_assert_eq!(shape.to_string().parse(), Ok(shape));
    }

    #[test]
    fn nothing_arrives_early_or_out_of_order(
        shape in any_shape(),
        sends in proptest::collection::vec((0_u64..1000, 0_usize..70_000), 1..50),
    ) {
        let mut shaper = Shaper::new(shape);
        let (mut now, mut last) = (Duration::ZERO, Duration::ZERO);
        for (pause, bytes) in sends {
            now += ms(pause);
            let arrival = shaper.send(now, bytes);
            // A nanosecond for the rounding of the jitter.
            prop_assert!(arrival + Duration::from_nanos(1) >= now + shape.delay - shape.jitter);
            prop_assert!(arrival >= last);
            last = arrival;
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9=,.% µ]{0,40}") {
        let _ = text.parse::<Shape>();
    }
}
