"""Bytes to markup: the charset is found, and hostile markup cannot stall a worker."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webindex.page.markup import MAX_BODY, MAX_DEPTH, MAX_TAG, decode, xml_markup_of

FRENCH = "<p>Le serveur héberge déjà trois sites très visités, où l'été dure.</p>" * 3
RUSSIAN = "<p>Сервер обслуживает запросы и ведёт журнал всех обращений к нему.</p>" * 3
JAPANESE = "<p>サーバーは要求を処理し、すべてのアクセスを記録します。</p>" * 3
KOREAN = "<p>서버는 요청을 처리하고 모든 접속을 기록합니다.</p>" * 3


@pytest.mark.parametrize(
    ("text", "codec", "content_type"),
    [
        (FRENCH, "utf-8", "text/html; charset=utf-8"),
        (FRENCH, "cp1252", "text/html; charset=ISO-8859-1"),
        (RUSSIAN, "koi8-r", 'text/html; charset="KOI8-R"'),
        (RUSSIAN, "cp1251", "text/html;charset = windows-1251"),
        (JAPANESE, "shift_jis", "text/html; charset=Shift_JIS"),
        (JAPANESE, "iso2022_jp", "text/html; charset=iso-2022-jp"),
        (JAPANESE, "utf-16-le", "text/html; charset=utf-16"),
    ],
)
def test_the_header_names_the_charset(text: str, codec: str, content_type: str) -> None:
    assert decode(text.encode(codec), content_type) == text


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("euc-kr", "cp949", "<p>안녕하세요. 똠방각하 펲시콜라</p>"),
        ("ks_c_5601-1987", "cp949", "<p>설믜를 봤다</p>"),
        ("Shift_JIS", "cp932", "<p>①株式会社～㈱日本橋髙島屋</p>"),
        ("gb2312", "gb18030", "<p>价格：€20，作者：㐂</p>"),
        ("big5", "big5hkscs", "<p>下圍碁喺香港嘅</p>"),
        ("tis-620", "cp874", "<p>“ภาษาไทย”</p>"),
    ],
)
def test_a_charset_is_the_larger_one_that_browsers_read_it_as(
    label: str, codec: str, text: str
) -> None:
    assert decode(text.encode(codec), f"text/html; charset={label}") == text
    page = f'<meta charset="{label}">{text}'
    assert decode(page.encode(codec), "text/html") == page


def euc_jp(text: str) -> bytes:
    """Text in EUC-JP as Windows writes it: the rows and cells of Shift_JIS, in another way."""
    made = bytearray()
    for one in text:
        byte = one.encode("cp932")
        if len(byte) == 2:
            first, second = byte
            pair = first - (0x81 if first < 0xA0 else 0xC1)
            cell = second - 0x3F - (second > 0x7E)
            byte = bytes((0xA1 + 2 * pair + (cell > 94), 0xA0 + cell - 94 * (cell > 94)))
        elif byte >= b"\xa0":
            byte = b"\x8e" + byte
        made += byte
    return bytes(made)


def iso_2022_jp(text: str) -> bytes:
    made, shift = bytearray(), b"\x1b(B"
    for one in text:
        byte = euc_jp(one)
        of = b"\x1b(B" if len(byte) == 1 else b"\x1b(I" if byte[0] == 0x8E else b"\x1b$B"
        made += of * (of != shift) + bytes(b & 0x7F for b in byte[byte[0] == 0x8E :])
        shift = of
    return bytes(made)


@pytest.mark.parametrize("label", ["EUC-JP", "ISO-2022-JP", "csISO2022JP", "x-euc-jp"])
def test_japanese_charsets_have_the_signs_of_windows(label: str) -> None:
    encode = euc_jp if "euc" in label.lower() else iso_2022_jp
    text = "<p>①㈱日本橋、纊ｱｲｳ ａｂｃ №Ⅲ ㍻</p>"
    assert decode(encode(JAPANESE), f"text/html; charset={label}") == JAPANESE
    assert decode(encode(text), f"text/html; charset={label}") == text
    page = f'<meta charset="{label}">{text}'
    assert decode(encode(page), "text/html") == page
    cut = decode(encode(text)[:-9], f"text/html; charset={label}")
    assert "\ufffd" not in cut and cut.startswith("<p>①㈱日本橋、纊ｱｲｳ ａｂ")


def test_cyrillic_of_old_macintoshes_is_read() -> None:
    page = RUSSIAN.encode("mac_cyrillic")
    assert decode(page, "text/html; charset=x-mac-cyrillic") == RUSSIAN
    declared = '<meta charset="X-Mac-Ukrainian">' + RUSSIAN
    assert decode(declared.encode("mac_cyrillic"), "text/html") == declared


@pytest.mark.parametrize("header", ["text/html", "text/html; charset=utf-16"])
def test_a_page_without_nul_characters_is_not_utf_16(header: str) -> None:
    page = f'<meta charset="utf-16">{FRENCH}{JAPANESE}'
    assert decode(page.encode(), header) == page


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        *((FRENCH, "utf-8"), (FRENCH, "cp1252"), (RUSSIAN, "koi8-r"), (JAPANESE, "euc_jp")),
        # What its bytes look like is simplified Chinese.
        ("我昨天去商店買了新鮮的麵包。", "big5"),
    ],
)
@pytest.mark.parametrize("before", ["", f"<script>'<meta charset=koi8-r> {'x' * 5000}'</script>"])
def test_without_a_header_the_page_names_its_charset(text: str, codec: str, before: str) -> None:
    page = f'<html><head>{before}<meta charset="{codec.replace("_", "-")}"></head>{text}'
    assert decode(page.encode(codec), "text/html") == page


@pytest.mark.parametrize(
    ("text", "label"),
    [("Żółta herbata", "iso-8859-2"), ("Зелёный чай", "windows-1251"), ("緑茶です", "euc-jp")],
)
def test_of_xhtml_that_is_called_html_the_xml_declaration_counts_behind_its_own(
    text: str, label: str
) -> None:
    page = f'<?xml version="1.0" encoding="{label}"?><html>{text}'
    assert decode(page.encode(label), "text/html") == page
    page = f'<?xml version="1.0" encoding="utf-8"?><html><meta charset="{label}">{text}'
    assert decode(page.encode(label), "text/html") == page


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (FRENCH, "utf-8"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN * 5, "mac_cyrillic"),
        (JAPANESE, "shift_jis"),
        (KOREAN, "euc_kr"),
        (f"{KOREAN}똠", "cp949"),
    ],
)
def test_without_any_declaration_the_bytes_tell(text: str, codec: str) -> None:
    assert decode((text * 5).encode(codec), None) == text * 5


@pytest.mark.parametrize(
    ("text", "codec", "label"),
    [
        (FRENCH, "cp1252", "utf-8"),
        (RUSSIAN * 5, "cp1251", "utf-8"),
        (FRENCH, "utf-8", "iso-8859-1"),
        (JAPANESE, "utf-8", "us-ascii"),
        (JAPANESE * 5, "euc_jp", "utf-8"),
        (KOREAN * 5, "euc_kr", "utf-8"),
        (FRENCH, "utf-8", "no-such-charset"),
        (FRENCH, "utf-8", "unicode_escape"),
        (FRENCH, "utf-8", "\ud800é"),
    ],
)
def test_a_label_that_the_bytes_contradict_is_not_believed(
    text: str, codec: str, label: str
) -> None:
    assert decode(text.encode(codec), f"text/html; charset={label}") == text


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_a_byte_order_mark_outweighs_the_header(mark: bytes, codec: str) -> None:
    assert decode(mark + JAPANESE.encode(codec), "text/html; charset=koi8-r") == JAPANESE


@pytest.mark.parametrize(
    ("text", "label"), [(FRENCH, "utf-8"), ("<p>caf", "utf-8"), (FRENCH, "iso-8859-1")]
)
def test_a_page_cut_in_the_middle_of_a_character_keeps_its_charset(text: str, label: str) -> None:
    assert decode(text.encode() + "é".encode()[:1], f"text/html; charset={label}") == text


@pytest.mark.parametrize("label", ["utf-8", "iso-8859-1"])
def test_one_broken_character_in_a_long_page_does_not_change_its_charset(label: str) -> None:
    body = (FRENCH * 5).encode() + b"<p>\xff</p>" + (FRENCH * 5).encode()
    text = FRENCH * 5 + "<p>\ufffd</p>" + FRENCH * 5
    assert decode(body, f"text/html; charset={label}") == text


def test_empty_elements_and_character_data_of_xml_are_read_as_they_are_meant() -> None:
    body = (
        b"<?xml version='1.0' encoding='iso-8859-1'?><title/><p>caf\xe9<br/><![CDATA[a < b]]></p>"
    )
    found = xml_markup_of(body, "text/xml").text
    assert found.endswith("<title></title><p>café<br/>a &lt; b</p>")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "middle",
    [b"<a" + b" " * 1_500_000 + b"<b>", b"<![CDATA[" * 170_000],
    ids=["spaces in a tag", "sections without an end"],
)
def test_hostile_xml_is_read_at_once(middle: bytes) -> None:
    found = xml_markup_of(b"<p><![CDATA[a < b]]></p>" + middle + b"<hr class=x />", "text/xml").text
    assert found == "<p>a &lt; b</p>" + middle.decode() + "<hr class=x />"


def test_an_empty_element_keeps_its_attributes() -> None:
    body = b"<i a='/'  /><i a=b/ ><b\n/><u/></u>"
    assert xml_markup_of(body, "text/xml").text == "<i a='/'></i><i a=b/ ><b></b><u></u></u>"


def test_the_charset_of_the_header_goes_before_that_of_the_xml_declaration() -> None:
    body = "<?xml version='1.0' encoding='iso-8859-1'?><p>café</p>".encode()
    assert "café" in xml_markup_of(body, "application/xml; charset=utf-8").text


def test_only_the_beginning_of_a_huge_body_is_read() -> None:
    assert len(decode(b"x" * (MAX_BODY + 10), "text/plain")) == MAX_BODY


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=30)))
def test_any_bytes_decode_to_text_that_can_be_stored(body: bytes, content_type: str | None) -> None:
    text = decode(body, content_type)
    assert "\0" not in text
    text.encode("utf-8")


def test_markup_of_a_sane_depth_is_not_touched() -> None:
    deep = "<div>" * MAX_DEPTH + "text" + "</div>" * MAX_DEPTH
    long_but_flat = "<p>one<br><img src=x><li>two" * 2000
    assert decode(deep.encode(), "text/html") == deep
    assert decode(long_but_flat.encode(), "text/html") == long_but_flat


# Outside of a ruby element, rp and rt nest like any other.
@pytest.mark.parametrize("name", ["div", "rt", "rp"])
def test_beyond_the_depth_limit_tags_go_and_text_stays(name: str) -> None:
    opened, closed = f"<{name}>", f"</{name}>"
    body = opened * 5000 + "inside" + closed * 5000 + "<p>after</p>"
    flat = opened * MAX_DEPTH + "inside" + closed * MAX_DEPTH + "<p>after</p>"
    assert decode(body.encode(), "text/html") == flat


def test_thousands_of_self_closed_elements_do_not_count_as_nested() -> None:
    drawing = "<svg>" + "<path d=''/>" * 5000 + "</svg><div>text</div>"
    assert decode(drawing.encode(), "text/html").endswith("</svg><div>text</div>")


def test_a_tag_with_thousands_of_attributes_goes_and_its_content_stays() -> None:
    attributes = " ".join(f"a{i}=1" for i in range(MAX_TAG))
    assert decode(f"<div {attributes}>text</div>".encode(), "text/html") == "text</div>"
