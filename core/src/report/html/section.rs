//! Writes the sections and tables of a page.

use crate::report::html::markup::Html;
use crate::report::html::page_view::RunPageView;

/// Writes a section with a heading.
pub(super) fn write_section(
    html: &mut Html,
    view: &RunPageView<'_>,
    id: &'static str,
    title: &str,
    content: impl FnOnce(&mut Html),
) {
    let id = view.element_id(id);
    let heading = format!("{id}-title");
    html.element("section", &[("id", &id), ("aria-labelledby", &heading)], |html| {
        html.element("h2", &[("id", &heading)], |html| html.text(title));
        content(html);
    });
}

/// Writes a table that scrolls horizontally if it is wider than the screen.
pub(super) fn write_table(html: &mut Html, caption: &str, heads: &[&str], rows: impl FnOnce(&mut Html)) {
    html.element(
        "div",
        &[("class", "scroll"), ("role", "region"), ("aria-label", caption), ("tabindex", "0")],
        |html| {
            html.plain("table", |html| {
                html.text_element("caption", caption);
                html.plain("thead", |html| {
                    html.plain("tr", |html| {
                        for head in heads {
                            html.element("th", &[("scope", "col")], |html| html.text(head));
                        }
                    });
                });
                html.plain("tbody", rows);
            });
        },
    );
}
