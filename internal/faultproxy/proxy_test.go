package faultproxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/faultproxy"
)

// peer is a target that hands each connection it accepts to the test or, as an echo server, serves it.
type peer struct {
	net.Listener
	conns chan *net.TCPConn
}

func listen(t *testing.T, serve func(*net.TCPConn)) *peer {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{Listener: l, conns: make(chan *net.TCPConn, 16)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if serve != nil {
				running.Go(func() { defer c.Close(); serve(c.(*net.TCPConn)) })
			} else {
				t.Cleanup(func() { c.Close() })
				p.conns <- c.(*net.TCPConn)
			}
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return p
}

func echo(c *net.TCPConn) { io.Copy(c, c) }

func (p *peer) accept(t *testing.T) *net.TCPConn {
	t.Helper()
	select {
	case c := <-p.conns:
		return c
	case <-time.After(5 * time.Second):
		t.Fatal("target: no connection within 5 s")
		return nil
	}
}

func proxy(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t *testing.T, p *faultproxy.Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("got %q, error %v; want %q", got[:n], err, want)
	}
}

// expectSilence reads for a while and fails if there is anything, be it the end.
func expectSilence(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(d))
	defer c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes, error %v; want silence for %v", n, err, d)
	}
}

func expectEnd(t *testing.T, c net.Conn, want error) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		t.Fatalf("got %d bytes, error %v; want %v", n, err, want)
	}
}

// expectRefused connects and is reset, which may be so quick that connecting fails already.
func expectRefused(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	if err == nil {
		defer c.Close()
		expectEnd(t, c, syscall.ECONNRESET)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("dial: got error %v, want none or %v", err, syscall.ECONNRESET)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func TestPass(t *testing.T) {
	t.Parallel()
	p := proxy(t, listen(t, echo).Addr().String())
	c := dial(t, p)
	data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // 4 MiB
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
		c.CloseWrite()
	})
	got, err := io.ReadAll(c)
	sending.Wait()
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("got %d bytes, error %v; want the %d sent", len(got), err, len(data))
	}
	eventually(t, "connection counted out", func() bool { return p.Connections() == 0 })
	if got := p.Accepted(); got != 1 {
		t.Errorf("accepted %d, want 1", got)
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	const delay = 80 * time.Millisecond
	for name, f := range map[string]faultproxy.Faults{
		"to_target": {ToTarget: faultproxy.Path{Delay: delay}},
		"to_client": {ToClient: faultproxy.Path{Delay: delay}},
	} {
		t.Run(name, func(t *testing.T) {
			p := proxy(t, listen(t, echo).Addr().String())
			c := dial(t, p)
			send(t, c, "a")
			expect(t, c, "a")

			p.Set(f) // while the connection is open
			start := time.Now()
			send(t, c, "b")
			expect(t, c, "b")
			if took := time.Since(start); took < delay || took > 10*delay {
				t.Errorf("round trip took %v, want about %v", took, delay)
			}

			// A delay is a pipe's length, not its width: bytes sent one after the other do not add up.
			start = time.Now()
			for range 10 {
				send(t, c, "c")
			}
			expect(t, c, "cccccccccc")
			if took := time.Since(start); took < delay || took > 5*delay {
				t.Errorf("10 sends took %v, want about %v", took, delay)
			}

			p.Set(faultproxy.Both(faultproxy.Path{Delay: time.Hour}))
			send(t, c, "d")
			expectSilence(t, c, 50*time.Millisecond)
			p.Heal() // also what waits already
			expect(t, c, "d")
		})
	}
}

// What a client sent still arrives after the client has given up, in its time.
func TestDelay_outlives_client(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]struct {
		close func(*net.TCPConn)
		end   error
	}{
		"close": {func(c *net.TCPConn) { c.Close() }, io.EOF},
		"reset": {func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			target := listen(t, nil)
			p := proxy(t, target.Addr().String())
			p.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Delay: 200 * time.Millisecond}})
			c := dial(t, p)
			twin := target.accept(t)
			send(t, c, "late")
			start := time.Now()
			leave.close(c)
			expect(t, twin, "late")
			if took := time.Since(start); took < 150*time.Millisecond {
				t.Errorf("arrived after %v, want about 200 ms", took)
			}
			expectEnd(t, twin, leave.end)
		})
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	p := proxy(t, listen(t, echo).Addr().String())
	c := dial(t, p)
	p.Set(faultproxy.Faults{ToClient: faultproxy.Path{Pause: true}})
	send(t, c, "held")
	expectSilence(t, c, 50*time.Millisecond)
	p.Heal()
	expect(t, c, "held")
	send(t, c, "on")
	expect(t, c, "on")
}

func TestPause_backpressure(t *testing.T) {
	t.Parallel()
	target := listen(t, nil)
	p := proxy(t, target.Addr().String())
	c := dial(t, p)
	twin := target.accept(t)
	p.Set(faultproxy.Both(faultproxy.Path{Pause: true}))
	chunk := make([]byte, 1<<20)
	sent := 0
	for sent < 256 {
		c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Write(chunk); err != nil {
			break
		}
		sent++
	}
	if sent == 256 {
		t.Error("a paused proxy took 256 MiB, want backpressure")
	}
	p.Heal()
	c.CloseWrite()
	if n, err := io.Copy(io.Discard, twin); err != nil || n < int64(sent)<<20 {
		t.Errorf("got %d bytes, error %v; want at least %d MiB", n, err, sent)
	}
}

func TestDrop(t *testing.T) {
	t.Parallel()
	target := listen(t, nil)
	p := proxy(t, target.Addr().String())
	c := dial(t, p)
	twin := target.accept(t)
	p.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Drop: true}})
	send(t, c, "lost")
	expectSilence(t, twin, 50*time.Millisecond)
	send(t, twin, "back") // the other way is open
	expect(t, c, "back")

	p.Heal()
	send(t, c, "after a gap") // must not follow bytes that never came
	expectSilence(t, twin, 50*time.Millisecond)
	c.Close()
	expectSilence(t, twin, 50*time.Millisecond) // nor does the close: half open
	if got := p.Reset(); got != 1 {
		t.Errorf("reset %d connections, want 1", got)
	}
	expectEnd(t, twin, syscall.ECONNRESET)

	c = dial(t, p)
	twin = target.accept(t)
	send(t, c, "new")
	expect(t, twin, "new")
}

func TestReset(t *testing.T) {
	t.Parallel()
	target := listen(t, nil)
	p := proxy(t, target.Addr().String())
	var ends []net.Conn
	for range 3 {
		ends = append(ends, dial(t, p), target.accept(t))
	}
	eventually(t, "3 connections", func() bool { return p.Connections() == 3 })
	if got := p.Reset(); got != 3 {
		t.Errorf("reset %d connections, want 3", got)
	}
	for _, c := range ends {
		expectEnd(t, c, syscall.ECONNRESET)
	}
	eventually(t, "no connections", func() bool { return p.Connections() == 0 })
}

// A reset by one peer reaches the other as a reset, a close as a close, half of it as half of it.
func TestEnds(t *testing.T) {
	t.Parallel()
	target := listen(t, nil)
	p := proxy(t, target.Addr().String())

	c, twin := dial(t, p), target.accept(t)
	twin.SetLinger(0)
	twin.Close()
	expectEnd(t, c, syscall.ECONNRESET)

	c, twin = dial(t, p), target.accept(t)
	c.CloseWrite()
	expectEnd(t, twin, io.EOF)
	send(t, twin, "still here")
	expect(t, c, "still here")
	twin.Close()
	expectEnd(t, c, io.EOF)

	// Whoever writes to a peer that has closed learns it, after reading all that the peer had sent.
	c, twin = dial(t, p), target.accept(t)
	p.Set(faultproxy.Faults{ToClient: faultproxy.Path{Delay: 100 * time.Millisecond}})
	send(t, twin, "farewell")
	twin.Close()
	send(t, c, "anybody?")
	expect(t, c, "farewell")
	eventually(t, "write to a closed peer fails", func() bool {
		_, err := io.WriteString(c, "?")
		return err != nil
	})
}

func TestCutAfter(t *testing.T) {
	t.Parallel()
	for _, d := range []string{"to_target", "to_client"} {
		t.Run(d, func(t *testing.T) {
			target := listen(t, nil)
			p := proxy(t, target.Addr().String())
			var from, to [2]net.Conn // two connections: each is counted for itself
			for i := range from {
				c := dial(t, p)
				from[i], to[i] = c, target.accept(t)
				if d == "to_client" {
					from[i], to[i] = to[i], from[i]
				}
				send(t, from[i], "uncounted")
				expect(t, to[i], "uncounted")
			}
			cut := faultproxy.Path{CutAfter: 5}
			if d == "to_target" {
				p.Set(faultproxy.Faults{ToTarget: cut})
			} else {
				p.Set(faultproxy.Faults{ToClient: cut})
			}
			for i := range from {
				send(t, to[i], "not this way")
				expect(t, from[i], "not this way")
				send(t, from[i], "123")
				expect(t, to[i], "123")
			}
			for i := range from {
				send(t, from[i], "45678")
				expect(t, to[i], "45")
				expectEnd(t, to[i], syscall.ECONNRESET)
				expectEnd(t, from[i], syscall.ECONNRESET)
			}
		})
	}
}

func TestBytesPerSecond(t *testing.T) {
	t.Parallel()
	target := listen(t, nil)
	p := proxy(t, target.Addr().String())
	p.Set(faultproxy.Faults{ToTarget: faultproxy.Path{BytesPerSecond: 100_000}})
	c := dial(t, p)
	twin := target.accept(t)
	start := time.Now()
	send(t, c, strings.Repeat("x", 30_000))
	c.CloseWrite()
	n, err := io.Copy(io.Discard, twin)
	if took := time.Since(start); err != nil || n != 30_000 || took < 250*time.Millisecond || took > 3*time.Second {
		t.Errorf("got %d bytes in %v, error %v; want 30000 in about 300 ms", n, took, err)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p := proxy(t, listen(t, echo).Addr().String())
	c := dial(t, p)
	send(t, c, "a")
	expect(t, c, "a")
	p.Set(faultproxy.Faults{Refuse: true})
	expectRefused(t, p)
	send(t, c, "open ones stay")
	expect(t, c, "open ones stay")
	p.Heal()
	c = dial(t, p)
	send(t, c, "b")
	expect(t, c, "b")
}

func TestSetTarget(t *testing.T) {
	t.Parallel()
	gone := listen(t, nil)
	gone.Close()
	p := proxy(t, gone.Addr().String())
	expectRefused(t, p) // nobody there

	for _, name := range []string{"one", "two"} {
		p.SetTarget(listen(t, func(c *net.TCPConn) { io.WriteString(c, name); echo(c) }).Addr().String())
		expect(t, dial(t, p), name)
	}
}

// Close ends connections in every condition, and every goroutine.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []faultproxy.Path{{}, {Delay: time.Hour}, {Pause: true}, {Drop: true}, {BytesPerSecond: 1}} {
		t.Run(fmt.Sprintf("%+v", path), func(t *testing.T) {
			p, err := faultproxy.New(l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			p.Set(faultproxy.Both(path))
			c := dial(t, p)
			// Enough to fill every queue, so that a reader hangs there.
			c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			c.Write(make([]byte, 64<<20))
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Errorf("close again: %v", err)
			}
			expectEnd(t, c, syscall.ECONNRESET)
			if got := p.Connections(); got != 0 {
				t.Errorf("%d connections after Close", got)
			}
		})
	}
	eventually(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}
