// Package faultproxy is a TCP proxy for loopback peers that can be told to misbehave, while connections are
// open and as often as a test likes.
//
//	p, err := faultproxy.New("127.0.0.1:5432")
//	...
//	p.Set(faultproxy.Faults{ToClient: faultproxy.Path{Delay: 50 * time.Millisecond}})
//	p.Set(faultproxy.Faults{}) // a healthy network again
//
// # How it works
//
// A connection is two lanes, one a direction. A lane is a reader, which stamps what arrives and queues it, and a
// writer, which applies the faults of the moment and passes it on:
//
//	client ──> reader ──[queue]──> writer ──> target
//	client <── writer <──[queue]── reader <── target
//
// The end of a stream travels through the queue like its bytes: a close arrives as a close and a reset as a
// reset, after everything sent before it. So a request delayed by four seconds reaches the target although the
// client has given up on it and gone, as it would on a long path.
//
// # Non-obvious
//
//   - Paused bytes arrive later; dropped ones never do. TCP would send lost bytes again, so a lane that has
//     dropped something passes nothing for the rest of its connection, not even the close: the peer sees a
//     half-open connection until it is reset. Pause is a partition that heals, Drop a peer that vanished.
//   - The queue of a lane is bounded; a paused lane soon stops reading, and the sender feels backpressure.
//   - A reset discards what the kernel still holds for the peer, as on a real network.
package faultproxy
