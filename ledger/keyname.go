package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// EventKey returns the key of a business event: its name, then 1 to 8 parts that say which one, joined by colons, such
// as scheduled-post-published:42. It is made of what the business knows, so it is the same on every retry and every
// run of a scheduler, in every language: docs/keys.md is the specification. What could be written in two ways is
// refused rather than changed.
//
// Numbers are given in plain decimal, times as the specification says. Never put in what is made for one delivery,
// and never only who is notified: a user's second event of a kind would be taken for the first.
//
// Errors: *KeyError, with the rule that is broken.
func EventKey(name string, parts ...string) (string, error) {
	return buildKey("name", name, "parts", parts)
}

// Recipient returns who gets a delivery, such as user:42. The type is a word of the domain and not the name of a class,
// which may be renamed. Errors: *KeyError.
func Recipient(typ, id string) (string, error) {
	return buildKey("type", typ, "id", []string{id})
}

// PayloadHash returns the hash for WithPayloadHash, over the bytes exactly as they are given: whoever hashes JSON must
// decide on one form of it.
func PayloadHash(payload []byte) string {
	sum := sha256.Sum256(payload)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// The limits of a built key, in characters and parts. ledger.build_key repeats them.
const (
	maxName  = 64
	maxParts = 8
)

func buildKey(nameField, name, partField string, parts []string) (string, error) {
	notUTF8 := func(s string) bool { return !utf8.ValidString(s) }
	switch {
	case notUTF8(name):
		return "", &KeyError{nameField, "not_utf8", "is not UTF-8"}
	case slices.ContainsFunc(parts, notUTF8):
		return "", &KeyError{partField, "not_utf8", "is not UTF-8"}
	case !validName(name):
		return "", &KeyError{nameField, "name_invalid", "has 1 to 64 characters: a lower-case letter, then lower-case letters, digits, and single - . or _ between them"}
	case len(parts) == 0:
		return "", &KeyError{partField, "parts_missing", "must name one concrete thing"}
	case len(parts) > maxParts:
		return "", &KeyError{partField, "parts_too_many", "are more than 8"}
	}
	var key strings.Builder
	key.WriteString(name)
	escape := strings.NewReplacer("%", "%25", ":", "%3A")
	for _, p := range parts {
		if err := checkPart(partField, p); err != nil {
			return "", err
		}
		key.WriteString(":" + escape.Replace(p))
	}
	if utf8.RuneCountInString(key.String()) > maxEventKey {
		return "", &KeyError{partField, "key_too_long", "make a key of more than 255 characters, escapes included"}
	}
	return key.String(), nil
}

func checkPart(field, p string) error {
	switch {
	case p == "":
		return &KeyError{field, "part_empty", "is empty"}
	case strings.ContainsFunc(p, unicode.IsControl):
		return &KeyError{field, "part_control", "holds a control character"}
	case p[0] == ' ' || p[len(p)-1] == ' ':
		return &KeyError{field, "part_space", "begins or ends with a space"}
	case !norm.NFC.IsNormalString(p):
		return &KeyError{field, "part_not_nfc", "is not in Unicode normalization form C"}
	}
	return nil
}

// validName reports whether a name is lower-case ASCII words of letters and digits, the first beginning with a letter,
// with single - . or _ between them.
func validName(s string) bool {
	if len(s) == 0 || len(s) > maxName {
		return false
	}
	afterSeparator := true
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9' && i > 0:
			afterSeparator = false
		case (c == '-' || c == '.' || c == '_') && !afterSeparator:
			afterSeparator = true
		default:
			return false
		}
	}
	return !afterSeparator
}
