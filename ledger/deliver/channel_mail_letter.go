package deliver

import (
	"bytes"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode"

	gomail "github.com/wneessen/go-mail"

	"github.com/outboxrelay/relay/ledger"
)

// letter is a mail with its envelope.
type letter struct {
	from, to string
	text     []byte // as it is sent, headers first
}

// maxMailLine is how long a line of a mail may be (RFC 5322). Bodies are encoded in shorter ones, headers are folded where they
// have spaces.
const maxMailLine = 998

// refusedMail says that no attempt can make a mail of the delivery.
func refusedMail(err error) error { return ledger.Permanent(fmt.Errorf("make mail: %w", err)) }

// compose makes the mail. Its errors quote nothing.
func (m *mailer) compose(d *Delivery, now time.Time) (*letter, error) {
	to, err := receiver(d)
	if err != nil {
		return nil, err
	}
	subject, err := oneLine(d.Fields["subject"])
	if err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(m.from)
	msg.ToMailAddress(to)
	msg.Subject(subject)
	msg.SetDateWithValue(now)
	msg.SetMessageIDWithValue(d.ProviderKey + "@" + m.domain)
	// What answers mails by itself, such as an out-of-office notice, is asked not to (RFC 3834).
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	text, html := d.Fields["text"], d.Fields["html"]
	switch {
	case text != "" && html != "":
		msg.SetBodyString(gomail.TypeTextPlain, text)
		msg.AddAlternativeString(gomail.TypeTextHTML, html)
	case html != "":
		msg.SetBodyString(gomail.TypeTextHTML, html)
	case text != "":
		msg.SetBodyString(gomail.TypeTextPlain, text)
	default:
		return nil, errors.New("text and html are empty")
	}
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	for line := range bytes.Lines(b.Bytes()) {
		if len(line) > maxMailLine+len("\r\n") {
			return nil, errors.New("the subject, or a name, is too long for a header's line")
		}
	}
	return &letter{m.from.Address, to.Address, b.Bytes()}, nil
}

// receiver is the address of the field to, else the recipient's id: mailto:ann@example.org.
func receiver(d *Delivery) (*mail.Address, error) {
	if text, given := d.Fields["to"]; given {
		a, err := address(text)
		if err != nil {
			return nil, fmt.Errorf("to: %w", err)
		}
		return a, nil
	}
	_, id := splitRecipient(d.Key.Recipient)
	a, err := address(id)
	if err != nil {
		return nil, errors.New("the recipient is no mail address, and the rule has no template for to")
	}
	return a, nil
}

// address reads one address, such as Ann <ann@example.org>.
func address(text string) (*mail.Address, error) {
	text, err := oneLine(text)
	if err != nil {
		return nil, err
	}
	a, err := mail.ParseAddress(text)
	// Encoded words may hide what oneLine refuses.
	if err != nil || strings.ContainsFunc(a.Name+a.Address, unicode.IsControl) {
		return nil, errors.New("is not one mail address")
	}
	return a, nil
}

// oneLine returns text without the space around it, and refuses what would end a header or a command.
func oneLine(text string) (string, error) {
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
		return "", errors.New("has more than one line, or control characters")
	}
	return text, nil
}
