package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxSecretFile bounds what is read from a file that holds one secret.
const maxSecretFile = 64 << 10

// openFileError is returned by checkSecretFile and readSecretFile for a file that others can read.
type openFileError struct {
	Path string
	Mode fs.FileMode
}

func (e *openFileError) Error() string {
	return fmt.Sprintf("file %q has mode %04o: others than its owner can read it", e.Path, e.Mode.Perm())
}

// readSecretFile returns the secret that a file holds, without the newline that editors put at the end. It is
// read again for each connection, so that a rotated password is found without a restart.
func readSecretFile(path string) (Secret, error) {
	value, err := readPrivateFile(path)
	switch {
	case err != nil:
		return Secret{}, err
	case strings.ContainsAny(value, "\n\r\x00"):
		return Secret{}, fmt.Errorf("read secret file %q: more than one line", path)
	}
	return NewSecret(value), nil
}

// readPrivateFile returns what is in a file that nobody else can read, without the newline at its end.
func readPrivateFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open secret file: %w", err)
	}
	defer f.Close()
	// The open file is examined, not the path, which may name another file by then.
	if err := checkSecretFile(path, f); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", fmt.Errorf("read secret file: %w", err)
	}
	if len(b) > maxSecretFile {
		return "", fmt.Errorf("read secret file %q: more than %d bytes", path, maxSecretFile)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if value == "" {
		return "", fmt.Errorf("read secret file %q: it is empty", path)
	}
	return value, nil
}

// checkSecretFile refuses a file that somebody else can read. The rule is libpq's for private keys: nobody but
// the owner, except that a file of root may be readable by its group, which is how a secret volume reaches a
// process that does not run as root.
func checkSecretFile(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("examine secret file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("examine secret file %q: not a regular file", path)
	}
	forbidden := fs.FileMode(0o077)
	if ownedByRoot(info) {
		forbidden = 0o037
	}
	if info.Mode().Perm()&forbidden != 0 {
		return &openFileError{Path: path, Mode: info.Mode()}
	}
	return nil
}
