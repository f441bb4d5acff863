package sink_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/sink"
)

func TestWebhookConfig_Validate(t *testing.T) {
	for _, tt := range []struct {
		change func(c *sink.WebhookConfig)
		want   string
	}{
		{func(c *sink.WebhookConfig) {}, ""},
		{func(c *sink.WebhookConfig) { c.URL = "https://hooks.example/{topic}/in" }, ""},
		{func(c *sink.WebhookConfig) { c.URL = "http://[::1]:8080/" }, ""},
		{func(c *sink.WebhookConfig) { c.URL = "http://hooks.example/"; c.AllowPlaintext = true }, ""},
		{func(c *sink.WebhookConfig) { c.URL = "http://hooks.example/" }, "readable by everybody"},
		{func(c *sink.WebhookConfig) { c.URL = "http://127.0.0.1.example/" }, "readable by everybody"},
		{func(c *sink.WebhookConfig) { c.URL = "https://user:hunter2@hooks.example/" }, "user name"},
		{func(c *sink.WebhookConfig) { c.URL = "https://hooks.example:hunter2/" }, "cannot be read"},
		{func(c *sink.WebhookConfig) { c.URL = "https://{topic}.example/" }, "cannot be read"},
		{func(c *sink.WebhookConfig) { c.URL = "https://hooks.example/?t={topic}" }, "in the path"},
		{func(c *sink.WebhookConfig) { c.URL = "https://hooks.example/#x" }, "fragment"},
		{func(c *sink.WebhookConfig) { c.URL = "ftp://hooks.example/" }, "want http or https"},
		{func(c *sink.WebhookConfig) { c.URL = "/hooks" }, "want http or https"},
		{func(c *sink.WebhookConfig) { c.URL = "" }, "want http or https"},
		{func(c *sink.WebhookConfig) { c.Concurrency = 0 }, "concurrency 0"},
		{func(c *sink.WebhookConfig) { c.RequestTimeout = 0 }, "request timeout"},
		{func(c *sink.WebhookConfig) { c.RetryAfterMost = 0 }, "retry after"},
		{func(c *sink.WebhookConfig) { c.Source = "" }, "source"},
		{func(c *sink.WebhookConfig) { c.ContentType = "a\nb" }, "content type"},
	} {
		cfg := webhookConfig("https://hooks.example/")
		tt.change(&cfg)
		err := cfg.Validate()
		if tt.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", cfg.URL, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

func TestParseWebhookKey(t *testing.T) {
	key := strings.Repeat("k", 24)
	if got, err := sink.ParseWebhookKey("whsec_" + base64.StdEncoding.EncodeToString([]byte(key))); err != nil || string(got) != key {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"", "whsec_", "hunter2hunter2hunter2hunter2", "whsec_hunter2!", "whsec_" + base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
		if _, err := sink.ParseWebhookKey(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestParseWebhookHeader(t *testing.T) {
	if name, value, err := sink.ParseWebhookHeader("x-api-key:  secret: value "); name != "X-Api-Key" || value != "secret: value" || err != nil {
		t.Errorf("got %q, %q, %v", name, value, err)
	}
	for _, bad := range []string{
		"", "hunter2", "X-Key:", ": hunter2", "a b: hunter2", "X-Key: hunter2\r\nX: y", "Host: hunter2", "content-length: 1", "Ce-Id: hunter2",
		"webhook-signature: hunter2", "idempotency-key: hunter2", "Transfer-Encoding: chunked",
	} {
		if _, _, err := sink.ParseWebhookHeader(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}
