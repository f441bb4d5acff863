package deliver_test

import (
	"context"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// mailSettings are those of a channel that sends by v.
func mailSettings(t *testing.T, v *mailServer, more ...string) deliver.Settings {
	t.Helper()
	s := deliver.Settings{
		"server": v.addr, "from": "Shop <no-reply@shop.test>", "ca_file": v.ca, "timeout": "5s",
		"username": "shop", "password_file": writeFile(t, "password", "hunter2\n"),
	}
	for i := 0; i < len(more); i += 2 {
		s[more[i]] = more[i+1]
	}
	return s
}

// yamlMail writes them for a rules file.
func yamlMail(name string, s deliver.Settings, more string) string {
	text := "  " + name + ": {kind: mail, backoff: 10ms..20ms, " + more
	for k, v := range s {
		text += fmt.Sprintf(", %s: %q", k, v)
	}
	return text + "}\n"
}

// Each way in which a mail can go wrong, and what the ledger holds then.
func TestMail(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"MAIL": "451 4.3.0 later", "RCPT later@shop.test": "450 4.2.0 <later@shop.test> is greylisted", "DATA data4@shop.test": "452 4.3.1 full",
		"end end4@shop.test": "451 4.3.0 later", "end cut@shop.test": "cut", "end cut.again@shop.test": "cut", "end silent@shop.test": "silent",
	}
	never := map[string]string{
		"RCPT unknown@shop.test": "550 5.1.1 <unknown@shop.test> is no customer", "DATA data5@shop.test": "554 5.7.1 no", "end end5@shop.test": "552 5.2.3 too big",
	}
	v := newMailServer(t, func(v *mailServer) {
		v.script = func(stage, about string, n int) string {
			what := strings.TrimSpace(stage + " " + about)
			if n == 1 && answers[what] != "" {
				return answers[what]
			}
			return never[what]
		}
	})
	early := newMailServer(t, func(v *mailServer) {
		v.implicit = true
		v.script = func(stage, _ string, n int) string {
			return map[string]string{"greeting 1": "421 4.3.2 busy", "EHLO 1": "cut", "AUTH 1": "535 5.7.8 no"}[fmt.Sprint(stage, " ", n)]
		}
	})
	s := mailSettings(t, v)
	silent := mailSettings(t, v, "timeout", "2s")
	const fields = `
        subject: "{{ if eq .event.key \"lines\" }}a\nBcc: eve@evil.test{{ else }}Grüße, {{ .payload.name }}{{ end }}"
        text: "Liebe {{ .payload.name }}"
        html: "<p>{{ \"<b>\" }}{{ .payload.name }}</p>"
`
	r := channels(t, yamlMail("once", silent, "on_uncertain: hold")+yamlMail("again", s, "on_uncertain: resend")+
		yamlMail("early", mailSettings(t, early, "tls", "implicit"), "on_uncertain: hold"),
		"      once:\n        to: \"{{ .event.key }}@shop.test\""+fields+"      again:\n        to: \"{{ .event.key }}.again@shop.test\""+fields+
			"      early:"+fields,
		"first", "later", "unknown", "data4", "data5", "end4", "end5", "cut", "silent", "lines")

	// Whoever met MAIL first was told to come later, before anything was known of its recipient.
	for _, tt := range []struct {
		key, state, reason, ref string
		mails                   int
	}{
		{"first", "delivered", "", "2.0.0 Ok: queued as 7", 1},
		{"later", "delivered", "", "2.0.0 Ok: queued as 7", 1},
		{"unknown", "dead", "RCPT TO: the server answers 550 5.1.1", "", 0},
		{"data4", "delivered", "", "2.0.0 Ok: queued as 7", 1},
		{"data5", "dead", "DATA: the server answers 554 5.7.1", "", 0},
		{"end4", "delivered", "", "2.0.0 Ok: queued as 7", 2}, // the server has seen it twice and taken it once
		{"end5", "dead", "end of DATA: the server answers 552 5.2.3", "", 1},
		{"cut", "uncertain", "end of DATA: EOF", "", 1},
		{"silent", "uncertain", "end of DATA: ", "", 1},
		{"lines", "dead", "make mail: subject: has more than one line, or control characters", "", 0},
	} {
		reason, ref := r.comes("once", tt.key, tt.state)
		if ref != tt.ref || !strings.HasPrefix(reason, tt.reason) || strings.Contains(reason, "@") {
			t.Errorf("%s: reason %q, reference %q", tt.key, reason, ref)
		}
		if n := len(v.to(tt.key + "@shop.test")); n != tt.mails {
			t.Errorf("%s: the server got it %d times, want %d", tt.key, n, tt.mails)
		}
	}
	r.comes("again", "cut", "delivered")
	if twice := v.to("cut.again@shop.test"); len(twice) != 2 || twice[0].parse(t).Header.Get("Message-Id") != twice[1].parse(t).Header.Get("Message-Id") {
		t.Errorf("a mail that may have arrived is sent again with its Message-ID: %v", twice)
	}
	if first := v.to("first@shop.test"); len(first) == 1 && !strings.Contains(first[0].text, "<p>&lt;b&gt;Zo=C3=AB</p>") {
		t.Errorf("what is filled into HTML is not escaped:\n%s", first[0].text)
	}
	// A server that lets nobody in is no mail's fault.
	for _, key := range []string{"first", "later", "cut"} {
		r.comes("early", key, "delivered")
	}
	if n := one[int](r, "SELECT sum(attempts) FROM ledger.notification_dispatches WHERE channel = 'early' AND state = 'delivered'"); n != 9+3 {
		t.Errorf("%d attempts for 9 mails and 3 failures", n)
	}
	if got := early.to("ann@example.test"); len(got) != 9 || got[0].user != "/shop/hunter2" || !got[0].secured || got[0].from != "no-reply@shop.test" {
		t.Errorf("%d mails to the recipient: %+v", len(got), got)
	}
	if n := one[int](r, "SELECT count(*) FROM ledger.dispatch_attempts WHERE reason ~ 'hunter2|c2hvcAB|@'"); n != 0 {
		t.Errorf("%d reasons show a secret or an address", n)
	}
}

// comes waits for a delivery to have a state.
func (r *rig) comes(channel, key, state string) (reason, ref string) {
	r.t.Helper()
	attempts := func() int {
		return one[int](r, "SELECT coalesce(max(attempts), 0) FROM ledger.notification_dispatches WHERE channel = $1 AND event_key = $2 AND state = $3", channel, key, state)
	}
	r.eventually(channel+" "+key+" to be "+state, func() bool { return attempts() > 0 })
	return r.becomes(channel, key, fmt.Sprint(state, " ", attempts()))
}

func letterTo(to string) deliver.Delivery {
	return deliver.Delivery{
		Key: ledger.Key{EventKey: "k", Recipient: "user:ann@example.test", Channel: "mail"}, Attempt: 1, ProviderKey: strings.Repeat("ab", 32),
		Fields: map[string]string{"to": to, "subject": "Hello", "text": "text"},
	}
}

// What is known when a session ends early: nothing was sent, until the end of the letter.
func TestMail_stages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*mailServer)
		more   []string
		body   string
		want   ledger.Kind
		text   string // in the error
		last   string // command that the server got
	}{
		"greeting 5xx":      {func(v *mailServer) { v.script = at("greeting", "554 5.7.1 go away") }, nil, "", ledger.KindRetry, "greeting: the server answers 554 5.7.1", ""},
		"greeting silent":   {func(v *mailServer) { v.script = at("greeting", "silent") }, []string{"timeout", "300ms"}, "", ledger.KindRetry, "greeting: ", ""},
		"not SMTP":          {func(v *mailServer) { v.script = at("greeting", "HTTP/1.1 400 ann@example.test") }, nil, "", ledger.KindRetry, "is not SMTP", ""},
		"EHLO cut":          {func(v *mailServer) { v.script = at("EHLO", "cut") }, nil, "", ledger.KindRetry, "EHLO: ", "EHLO"},
		"no STARTTLS":       {func(v *mailServer) { v.bare = true }, nil, "", ledger.KindRetry, "does not offer STARTTLS", "EHLO"},
		"STARTTLS refused":  {func(v *mailServer) { v.script = at("STARTTLS", "454 4.7.0 no") }, nil, "", ledger.KindRetry, "STARTTLS: the server answers 454 4.7.0", "STARTTLS"},
		"other authority":   {nil, []string{"ca_file", newAuthority(t).file}, "", ledger.KindRetry, "certificate", "STARTTLS"},
		"implicit, other":   {func(v *mailServer) { v.implicit = true }, []string{"tls", "implicit", "ca_file", newAuthority(t).file}, "", ledger.KindRetry, "certificate", ""},
		"AUTH refused":      {func(v *mailServer) { v.script = at("AUTH", "535 5.7.8 shop hunter2") }, nil, "", ledger.KindRetry, "AUTH: the server answers 535 5.7.8", "QUIT"},
		"MAIL silent":       {func(v *mailServer) { v.script = at("MAIL", "silent") }, []string{"timeout", "500ms"}, "", ledger.KindRetry, "MAIL FROM: ", "MAIL"},
		"MAIL refused":      {func(v *mailServer) { v.script = at("MAIL", "550 5.7.1 no") }, nil, "", ledger.KindPermanent, "MAIL FROM: the server answers 550 5.7.1", "MAIL"},
		"DATA cut":          {func(v *mailServer) { v.script = at("DATA", "cut") }, nil, "", ledger.KindRetry, "DATA: EOF", "DATA"},
		"cut in the letter": {func(v *mailServer) { v.script = at("body", "cut") }, nil, strings.Repeat("long ", 4<<20), ledger.KindRetry, "DATA: ", "DATA"},
		"cut behind it":     {func(v *mailServer) { v.script = at("end", "cut") }, nil, "", ledger.KindAmbiguous, "end of DATA: EOF", "DATA"},
		"silent behind it":  {func(v *mailServer) { v.script = at("end", "silent") }, []string{"timeout", "500ms"}, "", ledger.KindAmbiguous, "end of DATA: ", "DATA"},
		"QUIT refused":      {func(v *mailServer) { v.script = at("QUIT", "cut") }, nil, "", "", "", "QUIT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newMailServer(t, tt.change)
			d := letterTo("ann@example.test")
			if tt.body != "" {
				d.Fields["text"] = tt.body
			}
			ref, err := newChannel(t, "mail", mailSettings(t, v, tt.more...)).Send(t.Context(), d)
			if tt.want == "" {
				if err != nil || ref != "2.0.0 Ok: queued as 7" || !strings.HasSuffix(v.commands(), tt.last) {
					t.Errorf("reference %q, error %v, commands %s", ref, err, v.commands())
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			kind, _ := ledger.Classify(err)
			if kind != tt.want || !strings.Contains(err.Error(), tt.text) || !strings.HasSuffix(v.commands(), tt.last) {
				t.Errorf("%s: %v, after %s", kind, err, v.commands())
			}
			for _, secret := range []string{"hunter2", "ann@example.test"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows %s: %v", secret, err)
				}
			}
		})
	}
}

// at is a script that has one answer of its own.
func at(stage, answer string) func(string, string, int) string {
	return func(s, _ string, _ int) string {
		if s == stage {
			return answer
		}
		return ""
	}
}

// When the right to act ends, the session does, whatever the server is at.
func TestMail_leaseOver(t *testing.T) {
	t.Parallel()
	for stage, want := range map[string]ledger.Kind{"RCPT": ledger.KindRetry, "end": ledger.KindAmbiguous} {
		reached := make(chan struct{})
		v := newMailServer(t, func(v *mailServer) {
			v.script = func(s, _ string, _ int) string {
				if s == stage {
					close(reached)
					return "silent"
				}
				return ""
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-reached; cancel() }()
		began := time.Now()
		_, err := newChannel(t, "mail", mailSettings(t, v, "timeout", "1m")).Send(ctx, letterTo("ann@example.test"))
		if kind, _ := ledger.Classify(err); err == nil || kind != want || time.Since(began) > 20*time.Second {
			t.Errorf("%s: %v %v after %v", stage, kind, err, time.Since(began))
		}
	}
}

// A letter that is in order, read as a mail program reads it.
func TestMail_letter(t *testing.T) {
	t.Parallel()
	v := newMailServer(t, nil)
	c := newChannel(t, "mail", mailSettings(t, v, "from", "Läden & Co <no-reply@shop.test>"))
	d := letterTo("Zoë <zoe@example.test>")
	subject := strings.Repeat("Grüße an Zoë, ", 20) + "日本語"
	text := "Liebe Zoë,\n.\n..\nFrom here\n" + strings.Repeat("long", 1000) + "\n"
	html := "<p>" + strings.Repeat("ü", 2000) + "</p>\n"
	d.Fields["subject"], d.Fields["text"], d.Fields["html"] = "  "+subject+"\n", text, html
	if _, err := c.Send(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got := v.to("zoe@example.test")
	if len(got) != 1 {
		t.Fatalf("%d mails", len(got))
	}
	for line := range strings.Lines(got[0].text) {
		if len(line) > 200 {
			t.Errorf("a line of %d bytes: %.80s", len(line), line)
		}
	}
	msg := got[0].parse(t)
	words := new(mime.WordDecoder)
	if s, err := words.DecodeHeader(msg.Header.Get("Subject")); err != nil || s != subject {
		t.Errorf("subject %q, %v", s, err)
	}
	for name, want := range map[string]string{"From": "Läden & Co <no-reply@shop.test>", "To": "Zoë <zoe@example.test>"} {
		w, _ := mail.ParseAddress(want)
		if a, err := mail.ParseAddress(msg.Header.Get(name)); err != nil || *a != *w {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	if id := msg.Header.Get("Message-Id"); id != "<"+d.ProviderKey+"@shop.test>" {
		t.Errorf("Message-ID %s", id)
	}
	if at, err := msg.Header.Date(); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("date %v, %v", at, err)
	}
	if msg.Header.Get("Auto-Submitted") != "auto-generated" || msg.Header.Get("MIME-Version") != "1.0" {
		t.Errorf("headers %v", msg.Header)
	}
	typ, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil || typ != "multipart/alternative" {
		t.Fatalf("type %s, %v", typ, err)
	}
	parts := multipart.NewReader(msg.Body, params["boundary"])
	for _, want := range []struct{ typ, body string }{{"text/plain", text}, {"text/html", html}} {
		p, err := parts.NextRawPart()
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(quotedprintable.NewReader(p))
		if s := strings.ReplaceAll(string(body), "\r\n", "\n"); err != nil || strings.TrimRight(s, "\n") != strings.TrimRight(want.body, "\n") ||
			p.Header.Get("Content-Type") != want.typ+"; charset=UTF-8" {
			t.Errorf("%s: %v, %.200q", p.Header.Get("Content-Type"), err, s)
		}
	}
}

// What would add a header, a recipient or a command is refused before anybody is called.
func TestMail_injection(t *testing.T) {
	t.Parallel()
	v := newMailServer(t, nil)
	c := newChannel(t, "mail", mailSettings(t, v))
	for field, values := range map[string][]string{
		"subject": {"a\r\nBcc: eve@evil.test", "a\nb", "a\rb", "a\x00b", "a\u0085b", "a\u2028b", "a\x1bb", strings.Repeat("x", 2000)},
		"to": {
			"", "ann", "ann@example.test, eve@evil.test", "ann@example.test\r\nRCPT TO:<eve@evil.test>", "<ann@example.test> SIZE=1", "ann@example.test>\nDATA",
			"=?utf-8?q?a=0D=0ABcc=3A_eve?= <ann@example.test>", "friends: ann@example.test, eve@evil.test;", "\"a\nb\"@example.test",
		},
		"text": {""},
	} {
		for _, value := range values {
			d := letterTo("ann@example.test")
			d.Fields[field] = value
			_, err := c.Send(t.Context(), d)
			if err == nil {
				t.Fatalf("%s %q is taken", field, value)
			}
			if kind, _ := ledger.Classify(err); kind != ledger.KindPermanent || strings.Contains(err.Error(), "@") {
				t.Errorf("%s %q: %s, %v", field, value, kind, err)
			}
		}
	}
	d := letterTo("")
	delete(d.Fields, "to")
	d.Key.Recipient = "user:42"
	if _, err := c.Send(t.Context(), d); err == nil || !strings.Contains(err.Error(), "no template for to") {
		t.Errorf("a recipient that is no address: %v", err)
	}
	if got := v.commands(); got != "" {
		t.Errorf("the server was called: %s", got)
	}
}

// Without TLS mails go to this machine alone.
func TestMail_plaintext(t *testing.T) {
	t.Parallel()
	v := newMailServer(t, func(v *mailServer) { v.bare = true })
	c := newChannel(t, "mail", deliver.Settings{"server": v.addr, "from": "no-reply@shop.test", "insecure": "true"})
	if _, err := c.Send(t.Context(), letterTo("ann@example.test")); err != nil || len(v.to("ann@example.test")) != 1 {
		t.Errorf("%v, commands %s", err, v.commands())
	}
}

func TestMail_settings(t *testing.T) {
	t.Parallel()
	open := writeFile(t, "open", "hunter2")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	password := writeFile(t, "password", "hunter2")
	for settings, want := range map[string]string{
		"server: 'smtp.test:587', from: a@shop.test": "",
		"server: 'smtp.test:465', from: 'Shop <a@shop.test>', tls: implicit, username: shop, password_file: " + password: "",
		"server: '127.0.0.1:25', from: a@shop.test, insecure: true":                                                      "",
		"server: 'smtp.test:587'":                                                                      "from is not set",
		"server: smtp.test, from: a@shop.test":                                                         "server: is not host:port",
		"server: 'smtp.test:587', from: shop":                                                          "from: is not one mail address",
		"server: 'smtp.test:587', from: a@läden.test":                                                  "from: its domain is not ASCII",
		"server: 'smtp.test:587', from: a@shop.test, tls: none":                                        `tls: "none" is not starttls or implicit`,
		"server: 'smtp.test:25', from: a@shop.test, insecure: true":                                    "insecure: is for a server on this machine",
		"server: '127.0.0.1:25', from: a@shop.test, insecure: true, tls: starttls":                     "insecure: tls is set too",
		"server: 'smtp.test:587', from: a@shop.test, insecure: perhaps":                                `insecure: "perhaps" is not true or false`,
		"server: 'smtp.test:587', from: a@shop.test, username: shop":                                   "username: and password_file",
		"server: 'smtp.test:587', from: a@shop.test, password_file: " + password:                       "username: and password_file",
		"server: 'smtp.test:587', from: a@shop.test, username: shop, password_file: " + open:           "mode 0600",
		"server: 'smtp.test:587', from: a@shop.test, username: shop, password_env: RELAY_TEST_NOT_SET": `"RELAY_TEST_NOT_SET" is not set`,
		"server: 'smtp.test:587', from: a@shop.test, timeout: soon":                                    `timeout: "soon" is not a duration`,
		"server: 'smtp.test:587', from: a@shop.test, hello: 'a b'":                                     "hello: is not a host's name",
		"server: 'smtp.test:587', from: a@shop.test, ca_file: /none":                                   "ca_file: ",
		"server: 'smtp.test:587', from: a@shop.test, port: 25":                                         "channels.mail.port",
	} {
		_, err := deliver.ParseRules([]byte("channels:\n  mail: {"+settings+"}\nrules:\n  r:\n    event_type: T\n    recipients: SELECT 'a:b'\n    eligible: SELECT true, ''\n"+
			"    channels: {mail: {subject: a, text: b}}\n"), deliver.Kinds(deliver.NewLineWriter(os.Stderr)))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", settings, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "channels.mail") || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%s: got %v, want %q", settings, err, want)
		}
	}
	for fields, want := range map[string]string{
		"subject: a": "neither text nor html is set",
		"text: a":    "subject is not set",
		"subject: a, html: '<a href={{ .payload.x'":    "channels.mail.html",
		"subject: a, html: '<script>if ({{ .x }}) {/'": "channels.mail.html",
	} {
		_, err := deliver.ParseRules([]byte("channels:\n  mail: {server: 'smtp.test:587', from: a@shop.test}\nrules:\n  r:\n    event_type: T\n    recipients: SELECT 'a:b'\n    eligible: SELECT true, ''\n"+
			"    channels:\n      mail: {"+fields+"}\n"), deliver.Kinds(deliver.NewLineWriter(os.Stderr)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", fields, err, want)
		}
	}
}
