package sink

import (
	"encoding/base64"
	"strings"
	"testing"
)

// TestScram plays the exchange that RFC 7677 prints, and others that must not go through.
func TestScram(t *testing.T) {
	const nonce, server = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
	const challenge = "r=" + nonce + server + ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
	s, first := newScram(scram256, "user", "pencil", nonce)
	if string(first) != "n,,n=user,r="+nonce {
		t.Fatalf("got %q", first)
	}
	done, answer, err := s.next([]byte(challenge))
	if want := "c=biws,r=" + nonce + server + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="; done || err != nil || string(answer) != want {
		t.Errorf("got %v, %q, %v, want %q", done, answer, err, want)
	}
	good := "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
	if done, _, err := s.next([]byte(good)); !done || err != nil {
		t.Errorf("the server's proof: got %v, %v", done, err)
	}
	if _, _, err := s.next([]byte("v=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))); err == nil {
		t.Error("a wrong proof of the server is accepted")
	}
	for name, bad := range map[string]string{
		"another nonce": strings.Replace(challenge, nonce, "x"+nonce[1:], 1), "no nonce of its own": strings.Replace(challenge, server, "", 1),
		"few iterations": strings.Replace(challenge, "4096", "1", 1), "endless iterations": strings.Replace(challenge, "4096", "999999999", 1),
		"no salt": "r=" + nonce + server + ",s=,i=4096", "an error": "e=other-error", "nothing": "", "mandatory extension": "m=x," + challenge,
	} {
		s, _ := newScram(scram256, "user", "pencil", nonce)
		if _, _, err := s.next([]byte(bad)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, first := newScram(scram512, "a=b,c", "x", "n"); string(first) != "n,,n=a=3Db=2Cc,r=n" {
		t.Errorf("got %q", first)
	}
}
