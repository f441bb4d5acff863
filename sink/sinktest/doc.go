// Package sinktest holds what every sink.Publisher must do, as tests to be run over one. sink/publisher.go says it in
// words; whoever writes a publisher reads that file, describes the other side in a Target, and calls Run:
//
//	func TestMine(t *testing.T) {
//		sinktest.Run(t, func(t *testing.T) sinktest.Target {
//			far := startServer(t)
//			return sinktest.Target{
//				New:   func() sink.Publisher { return NewMine(far.URL) },
//				Topic: "t",
//				Read:  far.records,
//			}
//		})
//	}
//
// The publisher is driven by a real sink.Sink, lanes, retries and all. What the other side cannot be made to do is
// left out, visibly, as a skipped test.
package sinktest
