package sink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// refusedConnection reports whether a connection failed for a reason that lies in certificates or credentials, on
// either side: trying again does not help, but somebody may.
func refusedConnection(err error) bool { return hintConnection(err) != "" }

// hintConnection says what to look at when a connection was refused; "" when it was not.
func hintConnection(err error) string {
	var verification *tls.CertificateVerificationError
	var host x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var credentials *credentialsError
	var mistrust *mistrustError
	var op *net.OpError
	switch {
	case errors.As(err, &host):
		return "the broker's certificate is for another name: name the brokers, and have them advertise themselves, as it says"
	case errors.As(err, &authority):
		return "the broker's certificate is not from an authority that the relay trusts: set kafka.tls.ca_file"
	case errors.As(err, &invalid), errors.As(err, &verification):
		return "the broker's certificate is not valid: look at its dates and its use"
	case errors.As(err, &op) && op.Op == "remote error": // how crypto/tls marks an alert of the other side
		return "the broker ended the TLS handshake: it may want a client certificate, or another one, or speaks no TLS 1.2"
	case errors.As(err, &record):
		return "the broker does not speak TLS on this port: use its TLS port, or set kafka.tls.enabled: false"
	case errors.As(err, &credentials):
		return "the file must exist, be readable by the relay and private, and hold one line"
	case errors.As(err, &mistrust):
		return "somebody else answers in the broker's place, or the user's entry on the brokers is broken"
	}
	return ""
}
