<?php
// Keys as docs/keys.md specifies them: the same bytes in every language. Needs the extension intl.
//
//     php Keys.php vectors.json    prints what it makes of the vectors, one line a case
declare(strict_types=1);

/** Its message is the code of the rule that the key breaks. */
final class KeyRefused extends InvalidArgumentException {}

final class Keys
{
    /** Name of the event, then 1 to 8 parts that say which one: scheduled-post-published:42. */
    public static function event(?string $name, ?string ...$parts): string
    {
        if ($name === null || strlen($name) > 64 || !preg_match('/^[a-z][a-z0-9]*([-._][a-z0-9]+)*$/D', $name)) {
            throw new KeyRefused('name_invalid');
        }
        if ($parts === [] || in_array(null, $parts, true)) {
            throw new KeyRefused('parts_missing');
        }
        if (count($parts) > 8) {
            throw new KeyRefused('parts_too_many');
        }
        $key = $name;
        foreach ($parts as $part) {
            $rule = match (true) {
                $part === '' => 'part_empty',
                preg_match('/[\x{00}-\x{1f}\x{7f}-\x{9f}]/u', $part) === 1 => 'part_control',
                $part[0] === ' ' || $part[-1] === ' ' => 'part_space',
                !Normalizer::isNormalized($part, Normalizer::FORM_C) => 'part_not_nfc',
                default => null,
            };
            if ($rule !== null) {
                throw new KeyRefused($rule);
            }
            $key .= ':' . str_replace(['%', ':'], ['%25', '%3A'], $part);
        }
        if (preg_match_all('/./su', $key) > 255) { // code points, not bytes
            throw new KeyRefused('key_too_long');
        }
        return $key;
    }

    /** Who gets a delivery: user:42. The type is a word of the domain, never the name of a class. */
    public static function recipient(?string $type, ?string $id): string
    {
        return self::event($type, $id);
    }

    public static function payloadHash(string $bytes): string
    {
        return 'sha256:' . hash('sha256', $bytes);
    }
}

if (realpath($_SERVER['SCRIPT_FILENAME']) === __FILE__) {
    $vectors = json_decode(file_get_contents($argv[1]), true, flags: JSON_THROW_ON_ERROR);
    $show = function (array $cases, callable $build): void {
        foreach ($cases as $case) {
            try {
                echo $build($case), "\n";
            } catch (KeyRefused $e) {
                echo 'refused: ', $e->getMessage(), "\n";
            }
        }
    };
    $show($vectors['event_key'], fn ($c) => Keys::event($c['name'], ...$c['parts']));
    $show($vectors['recipient'], fn ($c) => Keys::recipient($c['type'], $c['id']));
    $show($vectors['payload_hash'], fn ($c) => Keys::payloadHash(base64_decode($c['base64'])));
}
