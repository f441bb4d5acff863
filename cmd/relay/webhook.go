package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// WebhookConfig says where events are posted to. It is not looked at when the sink is another one.
type WebhookConfig struct {
	// URL is where to: https, or http on this machine. {topic} in the path stands for the event's topic.
	URL string
	// Insecure accepts http to other machines. Default false.
	Insecure bool
	// Concurrency is how many requests are under way at most, and how many partitions the keys of a topic are spread
	// over. Default 8; 1 to 1024.
	Concurrency int
	// RequestTimeout bounds one request. Default 30s; 100ms to 5m.
	RequestTimeout time.Duration
	// RetryAfterMax bounds how long the receiver may ask to be left alone. Default 5m; 1s to 1h.
	RetryAfterMax time.Duration
	// Source is the attribute ce-source. Default "/relay".
	Source string
	// ContentType is that of values whose record does not say it. Default: application/json for what is JSON, else
	// application/octet-stream.
	ContentType string
	// Headers are sent with each request, Name: value. They are shown; secret ones go below.
	Headers []string
	// SecretHeaders are such headers, one a line, that nobody may see. Either they or SecretHeadersFile.
	SecretHeaders Secret
	// SecretHeadersFile names a file that holds them. It is read for each batch.
	SecretHeadersFile string
	// SigningSecret are the secrets, separated by white space, with which requests are signed: each makes a
	// signature. Either they or SigningSecretFile; neither: nothing is signed.
	SigningSecret Secret
	// SigningSecretFile names a file that holds them, one a line. It is read for each batch.
	SigningSecretFile string

	// TLS is used for https.
	TLS TLSFiles
}

// keys lists the keys of the section.
func (w *WebhookConfig) keys() []key {
	return []key{
		{name: "webhook.url", value: (*stringValue)(&w.URL),
			usage: "where events are posted to; {topic} in the path stands for the topic"},
		{name: "webhook.insecure", value: (*boolValue)(&w.Insecure),
			usage: "accept http to other machines"},
		{name: "webhook.concurrency", value: (*numberValue)(&w.Concurrency),
			usage: "requests under way at a time, and partitions of a topic's keys"},
		{name: "webhook.request_timeout", value: (*durationValue)(&w.RequestTimeout),
			usage: "limit of one request to the receiver"},
		{name: "webhook.retry_after_max", value: (*durationValue)(&w.RetryAfterMax),
			usage: "how long a receiver may ask to be left alone"},
		{name: "webhook.source", value: (*stringValue)(&w.Source),
			usage: "attribute ce-source of the events"},
		{name: "webhook.content_type", value: (*stringValue)(&w.ContentType),
			usage: "content type of values that have none of their own; empty tells JSON from others"},
		{name: "webhook.headers", value: (*listValue)(&w.Headers),
			usage: "headers of each request, Name: value"},
		{name: "webhook.secret_headers", value: (*secretValue)(&w.SecretHeaders), secret: true, whole: true,
			usage: "headers that nobody may see, one a line; not as a flag"},
		{name: "webhook.secret_headers_file", value: (*stringValue)(&w.SecretHeadersFile),
			usage: "file that holds such headers"},
		{name: "webhook.signing_secret", value: (*secretValue)(&w.SigningSecret), secret: true, whole: true,
			usage: "secrets, whsec_..., that sign each request; not as a flag"},
		{name: "webhook.signing_secret_file", value: (*stringValue)(&w.SigningSecretFile),
			usage: "file that holds such secrets, one a line"},
		{name: "webhook.tls.ca_file", value: (*stringValue)(&w.TLS.CAFile),
			usage: "trusted authorities, PEM; empty is the system's"},
		{name: "webhook.tls.cert_file", value: (*stringValue)(&w.TLS.CertFile),
			usage: "the relay's certificate, PEM, for receivers that ask for one"},
		{name: "webhook.tls.key_file", value: (*stringValue)(&w.TLS.KeyFile),
			usage: "the key of that certificate, PEM"},
	}
}

func defaultWebhook() WebhookConfig {
	d := sink.DefaultWebhookConfig()
	return WebhookConfig{Concurrency: d.Concurrency, RequestTimeout: d.RequestTimeout, RetryAfterMax: d.RetryAfterMost, Source: d.Source}
}

// client translates the settings. It reads the files of authorities, so its errors are those of files.
func (w *WebhookConfig) client() (cfg sink.WebhookConfig, err error) {
	cfg = sink.WebhookConfig{
		URL: w.URL, AllowPlaintext: w.Insecure, Concurrency: w.Concurrency, RequestTimeout: w.RequestTimeout,
		RetryAfterMost: w.RetryAfterMax, Source: w.Source, ContentType: w.ContentType, Secrets: w.secrets,
	}
	cfg.TLS, err = w.TLS.client()
	return cfg, err
}

// secrets reads what proves who we are.
func (w *WebhookConfig) secrets() (s sink.WebhookSecrets, err error) {
	hidden, err := secretLines(w.SecretHeaders, w.SecretHeadersFile)
	if err != nil {
		return s, err
	}
	s.Headers = http.Header{}
	for _, line := range slices.Concat(w.Headers, hidden) {
		name, value, err := sink.ParseWebhookHeader(line)
		if err != nil {
			return s, err
		}
		s.Headers.Add(name, value)
	}
	keys, err := secretLines(w.SigningSecret, w.SigningSecretFile)
	if err != nil {
		return s, err
	}
	for _, line := range keys {
		for text := range strings.FieldsSeq(line) {
			key, err := sink.ParseWebhookKey(text)
			if err != nil {
				return s, err
			}
			s.Keys = append(s.Keys, key)
		}
	}
	return s, nil
}

// secretLines returns the lines of a secret, or of the file that holds it; empty lines are left out.
func secretLines(secret Secret, path string) (lines []string, err error) {
	text := secret.Reveal()
	if path != "" {
		if text, err = readPrivateFile(path); err != nil {
			return nil, err
		}
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

func (w *WebhookConfig) validate(add addMistake) {
	if w.URL == "" {
		add("webhook.url", "not set", "name the URL that takes the events, https://hooks.example/outbox")
	} else if err := w.validateURL(); err != nil {
		hint := "write https://host/path, with {topic} in the path if you like"
		switch {
		case errors.Is(err, sink.ErrWebhookPlaintext):
			hint = "use https, or set webhook.insecure: true"
		case errors.Is(err, sink.ErrWebhookUserInfo):
			hint = "put them into webhook.secret_headers, as Authorization: Basic ..."
		}
		add("webhook.url", err.Error(), hint)
	}
	if w.Concurrency < 1 || w.Concurrency > 1024 {
		add("webhook.concurrency", fmt.Sprintf("%d is out of range", w.Concurrency), "use 1 to 1024")
	}
	if t := w.RequestTimeout; t < 100*time.Millisecond || t > 5*time.Minute {
		add("webhook.request_timeout", fmt.Sprintf("%s is out of range", t), "use 100ms to 5m")
	}
	if t := w.RetryAfterMax; t < time.Second || t > time.Hour {
		add("webhook.retry_after_max", fmt.Sprintf("%s is out of range", t), "use 1s to 1h")
	}
	if w.Source == "" || hasControl(w.Source) {
		add("webhook.source", fmt.Sprintf("%s is not a URI reference", quoted(w.Source)), "name the source of the events, such as /shop")
	}
	if hasControl(w.ContentType) {
		add("webhook.content_type", fmt.Sprintf("%s is not a content type", quoted(w.ContentType)), "write one like application/json")
	}
	w.validateSecrets(add)
	w.TLS.validateFiles("webhook.tls", add)
}

// validateURL looks at the URL alone.
func (w *WebhookConfig) validateURL() error {
	cfg := sink.DefaultWebhookConfig()
	cfg.URL, cfg.AllowPlaintext = w.URL, w.Insecure
	return cfg.Validate()
}

// validateSecrets reads the files as sending will.
func (w *WebhookConfig) validateSecrets(add addMistake) {
	for _, line := range w.Headers {
		name, _, err := sink.ParseWebhookHeader(line)
		switch {
		case err != nil:
			add("webhook.headers", err.Error(), "write a list of Name: value; a value with a comma goes into webhook.secret_headers")
		case slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie"}, name):
			add("webhook.headers", "header "+name+" is a secret, and these are shown", "use webhook.secret_headers or webhook.secret_headers_file")
		}
	}
	one := func(name string, secret Secret, path, form string, parse func(line string) error) {
		if !secret.Empty() && path != "" {
			add(name+"_file", name+" is set too", "keep one of them")
			return
		}
		if path != "" {
			name += "_file"
		}
		lines, err := secretLines(secret, path)
		if err != nil {
			add(name, err.Error(), secretFileHint(err))
		}
		for _, line := range lines {
			if err := parse(line); err != nil {
				add(name, err.Error(), form)
				return
			}
		}
	}
	one("webhook.secret_headers", w.SecretHeaders, w.SecretHeadersFile, "write Name: value, one a line", func(line string) error {
		_, _, err := sink.ParseWebhookHeader(line)
		return err
	})
	one("webhook.signing_secret", w.SigningSecret, w.SigningSecretFile, "make one with: echo whsec_$(openssl rand -base64 32)", func(line string) error {
		for text := range strings.FieldsSeq(line) {
			if _, err := sink.ParseWebhookKey(text); err != nil {
				return err
			}
		}
		return nil
	})
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
