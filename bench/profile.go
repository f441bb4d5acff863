package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// profileSeconds is how much of a drain a CPU profile covers.
const profileSeconds = 3

// saveProfile fetches a CPU profile of the relay while it drains. A run too short for it is said and no failure: the
// figures stand without it.
func (b *bench) saveProfile(ctx context.Context, admin string, d *dataset) {
	b.save(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, profileSeconds), fmt.Sprintf("%s-%d.pb.gz", d.name, b.runs))
}

// saveMetrics fetches what the relay has counted: how many requests it took, among others.
func (b *bench) saveMetrics(ctx context.Context, admin string, d *dataset) {
	b.save(ctx, fmt.Sprintf("http://%s/metrics", admin), fmt.Sprintf("%s-%d.metrics.txt", d.name, b.runs))
}

func (b *bench) save(ctx context.Context, url, name string) {
	path := filepath.Join(b.opt.profile, name)
	data, err := get(ctx, url)
	if err == nil {
		err = os.MkdirAll(b.opt.profile, 0o755)
	}
	if err == nil {
		err = writeFile(path, data)
	}
	if err != nil {
		b.say("  no %s: %v", path, err)
		return
	}
	b.say("  wrote %s", path)
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("get %q: %w", url, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, err // it names the request
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("get %q: %w", url, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %q: %s", url, res.Status)
	}
	return data, nil
}
