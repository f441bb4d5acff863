package faultproxy

import "time"

// Faults says how the proxy misbehaves. The zero value is a healthy network.
type Faults struct {
	ToTarget Path // from the client to the target
	ToClient Path // from the target to the client

	// Refuse resets every new connection. Open ones are not touched.
	Refuse bool
}

// Path says what happens to bytes that go one way. Fields combine.
type Path struct {
	// Delay is added to each byte's way. Bytes keep their order and follow each other as they came.
	Delay time.Duration

	// BytesPerSecond limits the bandwidth of each connection. 0: no limit.
	BytesPerSecond int

	// CutAfter resets a connection, on both sides, once it has passed that many bytes this way since the
	// faults were set or, if later, since it was opened. 0: never.
	CutAfter int64

	// Pause holds everything back until it is off again.
	Pause bool

	// Drop accepts everything and passes nothing. A connection on which something was dropped stays dead this
	// way for good.
	Drop bool
}

// Both returns faults with the same path in both directions.
func Both(p Path) Faults { return Faults{ToTarget: p, ToClient: p} }

// regime is a Faults in force, until changed is closed.
type regime struct {
	Faults
	changed chan struct{}
}

func (r *regime) path(d direction) *Path {
	if d == toTarget {
		return &r.ToTarget
	}
	return &r.ToClient
}

type direction int

const (
	toTarget direction = iota
	toClient
)

func (d direction) opposite() direction { return 1 - d }
