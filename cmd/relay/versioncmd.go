package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build says what runs. Its fields are API of relay version --json.
type build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	Modified  bool   `json:"modified"` // built from a tree with changes on top of the commit
	GoVersion string `json:"go_version"`
	Platform  string `json:"platform"`
}

// readBuild reads what the Go toolchain wrote into the binary.
func readBuild() build {
	b := build{Version: "unknown", Commit: "unknown", GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (p *process) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		b := readBuild()
		if *asJSON {
			return printJSON(p.stdout, b)
		}
		_, err := fmt.Fprintf(p.stdout, "relay %s\ncommit %s\n%s %s\n", b.Version, b.Commit, b.GoVersion, b.Platform)
		return err
	}
	return cmd
}
