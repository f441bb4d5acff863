package deliver_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"net/mail"
	"net/textproto"
	"strings"
	"sync"
	"testing"
)

// mailServer speaks as much SMTP as the tests need, and at each stage what a test says.
type mailServer struct {
	addr string
	ca   string
	// script says what is answered at a stage: the command's name, "greeting", or "end" for the end of DATA. about is
	// the recipient's address from RCPT on; n is 1 when it is asked for the first time. "": what is usual; "cut": the
	// connection ends; "silent": no answer.
	script func(stage, about string, n int) string
	// implicit: TLS from the first byte on. bare: it offers nothing.
	implicit, bare bool
	tls            *tls.Config

	serving sync.WaitGroup
	// mu guards the fields below.
	mu     sync.Mutex
	conns  map[net.Conn]bool
	asked  map[string]int
	said   []string // commands
	mails  []mailed
	closed bool
}

// mailed is what the server has taken, or would have if its answer were no other.
type mailed struct {
	from, to, user string
	secured        bool
	text           string
}

func (m mailed) parse(t *testing.T) *mail.Message {
	t.Helper()
	msg, err := mail.ReadMessage(strings.NewReader(m.text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, m.text)
	}
	return msg
}

func newMailServer(t *testing.T, change func(*mailServer)) *mailServer {
	t.Helper()
	a := newAuthority(t)
	v := &mailServer{ca: a.file, tls: a.tls, conns: map[net.Conn]bool{}, asked: map[string]int{}, script: func(string, string, int) string { return "" }}
	if change != nil {
		change(v)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v.addr = ln.Addr().String()
	v.serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			if !v.keep(conn) {
				return
			}
			v.serving.Go(func() {
				defer v.drop(conn)
				v.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		v.mu.Lock()
		v.closed = true
		for conn := range v.conns {
			conn.Close()
		}
		v.mu.Unlock()
		v.serving.Wait()
	})
	return v
}

func (v *mailServer) keep(conn net.Conn) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		conn.Close()
		return false
	}
	v.conns[conn] = true
	return true
}

func (v *mailServer) drop(conn net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.conns, conn)
	conn.Close()
}

// to returns the mails to an address.
func (v *mailServer) to(address string) []mailed {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []mailed
	for _, m := range v.mails {
		if m.to == address {
			list = append(list, m)
		}
	}
	return list
}

// commands returns the names of the commands that came.
func (v *mailServer) commands() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.said, " ")
}

// mailConn is one connection.
type mailConn struct {
	v    *mailServer
	conn net.Conn
	text *textproto.Conn
}

// answer says what the script or usage says, and reports whether that is what is usual.
func (c *mailConn) answer(stage, about, usual string) (fine, alive bool) {
	c.v.mu.Lock()
	c.v.asked[stage+" "+about]++
	n := c.v.asked[stage+" "+about]
	c.v.mu.Unlock()
	said := c.v.script(stage, about, n)
	switch said {
	case "":
		return true, c.text.PrintfLine("%s", usual) == nil
	case "cut":
		return false, false
	case "silent":
		_, _ = io.Copy(io.Discard, c.conn) // until the client goes
		return false, false
	}
	return false, c.text.PrintfLine("%s", said) == nil
}

func (v *mailServer) serve(conn net.Conn) {
	c := &mailConn{v: v, conn: conn}
	if v.implicit {
		c.conn = tls.Server(conn, v.tls)
	}
	c.text = textproto.NewConn(c.conn)
	if _, alive := c.answer("greeting", "", "220 mail.test ESMTP"); !alive {
		return
	}
	var m mailed
	m.secured = v.implicit
	for {
		line, err := c.text.ReadLine()
		if err != nil {
			return
		}
		name, rest, _ := strings.Cut(line, " ")
		name = strings.ToUpper(name)
		v.mu.Lock()
		v.said = append(v.said, name)
		v.mu.Unlock()
		alive := true
		switch name {
		case "EHLO":
			offer := "250-mail.test\r\n250-AUTH LOGIN PLAIN\r\n250-8BITMIME\r\n250 STARTTLS"
			switch {
			case v.bare:
				offer = "250 mail.test"
			case m.secured:
				offer = "250-mail.test\r\n250-8BITMIME\r\n250 AUTH LOGIN PLAIN"
			}
			_, alive = c.answer(name, "", offer)
		case "STARTTLS":
			var fine bool
			if fine, alive = c.answer(name, "", "220 go on"); fine {
				c.conn = tls.Server(conn, v.tls)
				c.text = textproto.NewConn(c.conn)
				m.secured = true
			}
		case "AUTH":
			_, initial, _ := strings.Cut(rest, " ")
			plain, _ := base64.StdEncoding.DecodeString(initial)
			m.user = string(bytes.ReplaceAll(plain, []byte{0}, []byte("/")))
			_, alive = c.answer(name, "", "235 2.7.0 welcome")
		case "MAIL":
			m.from = between(rest)
			_, alive = c.answer(name, "", "250 2.1.0 Ok")
		case "RCPT":
			m.to = between(rest)
			_, alive = c.answer(name, m.to, "250 2.1.5 Ok")
		case "DATA":
			var fine bool
			if fine, alive = c.answer(name, m.to, "354 go on"); fine {
				alive = c.data(m)
			}
		case "QUIT":
			_, _ = c.answer(name, "", "221 2.0.0 Bye")
			return
		default:
			alive = c.text.PrintfLine("250 Ok") == nil
		}
		if !alive {
			return
		}
	}
}

// data takes a mail. "body" in the script ends the connection in the middle of it.
func (c *mailConn) data(m mailed) bool {
	if c.v.script("body", m.to, 1) == "cut" {
		_, _ = c.text.ReadLine()
		return false
	}
	text, err := c.text.ReadDotBytes()
	if err != nil {
		return false
	}
	m.text = string(text)
	c.v.mu.Lock()
	c.v.mails = append(c.v.mails, m)
	c.v.mu.Unlock()
	_, alive := c.answer("end", m.to, "250 2.0.0 Ok: queued as 7")
	return alive
}

func between(text string) string {
	_, text, _ = strings.Cut(text, "<")
	text, _, _ = strings.Cut(text, ">")
	return text
}
